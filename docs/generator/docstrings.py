"""Turns the docstrings of classes into Markdown."""

import importlib
import inspect
import re
from typing import Any

from docs.generator.formulas import rendered
from docs.generator.tables import table

ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")
ATTRIBUTE = re.compile(r"^  (\w+(?:, \w+)*): (.*)$")
CODE = "    "  # docstrings indent formulas as Markdown indents code


def located(target: str) -> Any:
    """Returns the class that a `_target_` names."""
    module, _, name = target.rpartition(".")
    return getattr(importlib.import_module(module), name)


def of_module(name: str) -> str:
    """Returns the docstring of a module or package."""
    return importlib.import_module(name).__doc__ or ""


def body(cls: Any) -> str:
    """Returns the docstring of a class without its attributes; papers become links."""
    text = inspect.cleandoc(vars(cls)["__doc__"]).partition("\nAttributes:\n")[0].strip()
    return rendered(linked(text))


def attributes(cls: Any) -> dict[str, str]:
    """Returns the descriptions of attributes by name, those of parent classes included."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        text = inspect.cleandoc(vars(each).get("__doc__") or "").partition("\nAttributes:\n")[2]
        names: list[str] = []
        for line in text.splitlines():
            if match := ATTRIBUTE.match(line):
                names = match[1].split(", ")
                found |= dict.fromkeys(names, match[2])
            elif line.startswith(CODE):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            elif line.strip():
                break
    return {name: linked(text) for name, text in found.items()}


def contract(names: str) -> str:
    """Returns the docstrings of protocols such as `collection.Source`, and tables of methods."""
    parts: list[str] = []
    for name in names.split():
        cls = located(f"rl4p.protocols.{name}")
        parts.append(f"**`{cls.__name__}`** {body(cls)}")
        rows: dict[str, tuple[str, str]] = {}
        for each in cls.__mro__:
            for method, function in vars(each).items():
                own = each.__module__.startswith("rl4p.") and inspect.isfunction(function)
                if own and (method == "__call__" or not method.startswith("_")):
                    arguments = ", ".join(list(inspect.signature(function).parameters)[1:])
                    about = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
                    rows.setdefault(method, (f"`{method}({arguments})`", linked(about)))
        parts.append(table(("method", "meaning"), rows.values()))
    return "\n\n".join(parts)


def papers(cls: Any) -> list[str]:
    """Returns the arXiv numbers in the docstring of a class, in their order."""
    return list(dict.fromkeys(ARXIV.findall(vars(cls)["__doc__"])))


def arxiv(number: str) -> str:
    return f"[{number}](https://arxiv.org/abs/{number})"


def linked(text: str) -> str:
    """Makes each arXiv number a link, except in code."""
    return "\n".join(
        line if line.startswith(CODE) else ARXIV.sub(lambda found: arxiv(found[1]), line)
        for line in text.splitlines()
    )


def first_sentence(text: str) -> str:
    """Returns the first line of a text without its last punctuation mark."""
    return next(iter(text.strip().splitlines()), "").rstrip(".:")
