"""Values in the metadata of a prompt, in the forms that files and tables give them.

CSV has texts, pandas floats, and NumPy numbers of its own. A form with one meaning is read so:
``22``, ``22.0`` and ``"22"`` are 22; ``[3, 5, 7]``, ``(3, 5, 7)``, ``"[3, 5, 7]"`` and ``"3 5 7"``
are three numbers. Anything else is refused, so that no grade depends on a guess.
"""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any

DIGITS = re.compile(r"[+-]?[0-9]{1,64}(?:\.[0-9]{0,64}|/[0-9]{0,63}[1-9])?")


def exact_number(value: Any) -> Fraction:
    """Returns the exact value of a number or of a text with one.

    Raises:
      ValueError: the value is no finite number.
    """
    if isinstance(value, str):
        text = value.strip()
        if DIGITS.fullmatch(text):
            return Fraction(text)
    elif isinstance(value, bool):
        pass
    elif isinstance(value, Integral | Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    elif isinstance(value, Real | Decimal) and math.isfinite(value):
        return Fraction(str(value))
    raise ValueError(f"{value!r:.80} is no number")


def whole_number(value: Any) -> int:
    """Returns a number without a fractional part.

    Raises:
      ValueError: the value is no such number.
    """
    number = exact_number(value)
    if number.denominator != 1:
        raise ValueError(f"{value!r:.80} is no whole number")
    return number.numerator


def whole_numbers(value: Any) -> list[int]:
    """Returns a list of whole numbers.

    Raises:
      ValueError: the value is no list of them, or an empty one.
    """
    if isinstance(value, str):
        text = value.strip()
        if len(text) > 1 and text[0] + text[-1] in ("[]", "()"):
            text = text[1:-1].strip()
        value = re.split(r"\s*[,;]\s*|\s+", text) if text else []
    values = plain_list(value)
    if not values:
        raise ValueError(f"{value!r:.80} is no list of numbers")
    return [whole_number(each) for each in values]


def plain_list(value: Any) -> list[Any] | None:
    """Returns a list, a tuple or an array of one dimension as a list; None for anything else."""
    if isinstance(value, str | bytes | bytearray):
        return None
    array: Any = value
    if isinstance(value, Sequence):
        return list(value)
    return array.tolist() if getattr(array, "ndim", None) == 1 else None
