"""An extension of griffe, which reads docstrings for mkdocstrings."""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +\S.*)*)", re.MULTILINE)


class SharedDescriptions(griffe.Extension):
    """Gives each of several names with one description an entry of its own.

    Docstrings here write ``low, high: the bounds.``, which griffe reads as one name and a type.
    """

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ENTRY.sub(divided, obj.docstring.value)


def divided(entry: re.Match[str]) -> str:
    indent, names, text = entry.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))
