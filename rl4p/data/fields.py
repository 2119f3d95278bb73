"""The fields of a row: their lookup by key, and their comparison with values of a configuration."""

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np

from rl4p.base.errors import InputError

MISSING = object()
MOST_DIGITS = 10_000  # before or after the point


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


def kind_of(value: Any) -> str:
    """Returns in words what a value is that is no text, for an error message."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return {list: "a list", dict: "an object"}.get(type(value), type(value).__name__)


def equals(value: Any, wanted: Any) -> bool:
    """Returns whether a field has a wanted value.

    A text equals a number that is written like it, because all fields of CSV are texts.
    """
    if isinstance(value, str) and isinstance(wanted, int | float):  # true and false are numbers
        return value.lower() == str(wanted).lower()
    if isinstance(value, Decimal) and isinstance(wanted, float):
        return value == Decimal(repr(wanted))
    if isinstance(value, date) and isinstance(wanted, str):  # a date of a table, maybe with a time
        return wanted in (str(value), value.isoformat())
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


class Written(float):
    """A number of a file that has more digits than a float, which are in `digits`."""

    digits: str

    @classmethod
    def read(cls, text: str) -> float:
        """Returns the number of a text, as a float where the float has all of its digits."""
        value = float(text)
        if Decimal(repr(value)) == Decimal(text):
            return value
        number = cls(value)
        number.digits = text
        return number


def without_exponent(value: Any) -> str | None:
    """Returns the fewest digits of a finite number, or None for any other value."""
    if isinstance(value, np.number):  # str gives the fewest digits of its own type
        value = Decimal(str(value)) if np.isrealobj(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = value if isinstance(value, Decimal) else Decimal(getattr(value, "digits", repr(value)))
    if not number.is_finite() or abs(number.adjusted()) > MOST_DIGITS:
        return None
    digits = format(number, "f")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return "0" if digits == "-0" else digits


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
