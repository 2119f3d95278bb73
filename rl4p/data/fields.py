"""The fields of a row: their lookup by key, and their comparison with values of a configuration."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from rl4p.errors import InputError

MISSING = object()


def value_of(row: Mapping[Any, Any], key: str) -> Any:
    """Returns the field of a row that a key names, or MISSING.

    `a.b` is the field of that name, and otherwise the field b inside the field a.
    """
    if key in row:
        return row[key]
    value: Any = row
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


def names_of(row: Mapping[Any, Any]) -> str:
    """Returns the fields of a row in words, for an error message."""
    return f"the row has the fields {sorted(map(str, row))}"


def equals_any(value: Any, wanted: Any) -> bool:
    """Returns whether a field has a wanted value, or one of a list of them.

    A text equals a number that is written like it, because all fields of CSV are texts.
    """
    several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    return any(equals(value, each) for each in (wanted if several else (wanted,)))


def equals(value: Any, wanted: Any) -> bool:
    if isinstance(value, str) and isinstance(wanted, int | float):  # true and false are numbers
        return value.lower() == str(wanted).lower()
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def without_exponent(value: Any) -> str | None:
    """Returns the digits of a finite number, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return format(Decimal(repr(value)), "f")


def check_columns(keys: Sequence[str], columns: Sequence[str], place: str) -> list[str]:
    """Returns the columns of a table that keys name.

    Raises:
      InputError: there is no such column; names the place.
    """
    named: list[str] = []
    for key in keys:
        column = key if key in columns else key.split(".")[0]
        if column not in columns:
            raise InputError(
                f'{place}: no column "{column}"; the columns are {list(columns)} (the options of '
                "data that end in _key, _keys and where name columns)."
            )
        named.append(column)
    return list(dict.fromkeys(named))
