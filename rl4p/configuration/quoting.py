"""Overrides and commands that a user can paste into a shell: two grammars, two kinds of quotes."""

import json
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException


def override(key: str, value: str) -> str:
    """Returns KEY=VALUE for which Hydra reads exactly this text.

    Text needs Hydra's quotes if it has, for example, a comma, an equal sign, parentheses or letters
    with an accent, or if it looks like a number.
    """
    try:
        parsed = OverridesParser.create().parse_override(plain := f"{key}={value}")
    except HydraException:
        return quoted(key, value)
    same = not parsed.is_sweep_override() and parsed.value() == value
    return plain if same else quoted(key, value)


def readable(key: str, value: str) -> str:
    """Returns KEY=VALUE as it was given, with quotes only if Hydra cannot read it."""
    try:
        OverridesParser.create().parse_override(plain := f"{key}={value}")
    except HydraException:
        return quoted(key, value)
    return plain


def quoted(key: str, value: str) -> str:
    """Returns KEY="VALUE" in Hydra's quotes."""
    return f"{key}={QuotedString(value, Quote.double).with_quotes()}"


def setting(key: str, value: Any) -> str:
    """Returns KEY=VALUE for which Hydra reads this value of YAML, a mapping left out."""

    def written(value: Any) -> str:
        if isinstance(value, str):
            return QuotedString(value, Quote.double).with_quotes()
        if isinstance(value, list):
            return f"[{','.join(map(written, value))}]"
        return str(value) if isinstance(value, float) else json.dumps(value)

    return override(key, value) if isinstance(value, str) else f"{key}={written(value)}"
