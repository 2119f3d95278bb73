"""The fields of a row: their lookup by key, their comparison, and the numbers in them.

CSV has texts, pandas floats, and NumPy numbers of its own. A form with one meaning is read so:
``22``, ``22.0`` and ``"22"`` are 22; ``[3, 5, 7]``, ``(3, 5, 7)``, ``"[3, 5, 7]"`` and ``"3 5 7"``
are three numbers. Anything else is refused, so that no grade depends on a guess.
"""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any

import numpy as np

from rl4p.base.errors import InputError

MISSING = object()
MEDIA = ("images", "image", "videos", "video", "audios", "audio")  # fields that no policy reads
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


def digest_of_questions(
    questions: Iterable[tuple[str | None, str, str | None, Mapping[str, Any]]],
) -> str:
    """Returns a digest of what a grader and a reader know of questions, in their order.

    A question is its id, its text, its reference answer and its metadata. Another chat template or
    tokenizer makes no other question.
    """
    digest = hashlib.sha256()
    for identity, question, answer, metadata in questions:
        row = [identity, question, answer, dict(metadata)]
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


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
    """Returns the columns of a table that keys name."""
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


def is_filled(value: Any) -> bool:
    """Returns whether a field has a value: no null, no empty text, and no list of such values."""
    if isinstance(value, Mapping):
        return any(map(is_filled, value.values()))
    values = plain_list(value)
    if values is not None:
        return any(map(is_filled, values))
    return value not in (MISSING, None, False, b"") and not (
        isinstance(value, str) and not value.strip()
    )


def filled_rows(column: Any) -> list[bool]:
    """Returns for each row of an Arrow column whether it has a value, without reading it."""
    from pyarrow import compute as functions
    from pyarrow import types

    compute: Any = functions
    kind, valid = column.type, compute.is_valid(column)
    if types.is_struct(kind):  # a picture: its bytes, or its path
        parts = [filled_rows(compute.struct_field(column, i)) for i in range(kind.num_fields)]
        return [any(each) for each in zip(*parts, strict=True)]
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = compute.list_value_length(column)
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind):
        lengths = compute.binary_length(column)
    else:
        return valid.to_pylist()
    return compute.fill_null(compute.greater(lengths, 0), False).to_pylist()


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
    """Returns a number without a fractional part."""
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


Convert = Callable[[Any], Any]


def converter(kind: Any) -> Convert | None:
    """Returns a function that shortens the values of an Arrow type; None if none needs it.

    Python's floats have 64 bits, so 0.1 of a column with 32 or 16 bits would become
    0.10000000149011612. The function returns the float with the fewest digits that the column
    cannot tell from its value.
    """
    from pyarrow import types

    if types.is_float32(kind):
        return lambda value: float(str(np.float32(value)))
    if types.is_float16(kind):
        return lambda value: float(str(np.float16(value)))
    if types.is_dictionary(kind):
        return converter(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = converter(kind.value_type)
        return inner and (lambda values: [each if each is None else inner(each) for each in values])
    if types.is_map(kind):
        inner = converter(kind.item_type)
        return inner and (lambda pairs: [(k, v if v is None else inner(v)) for k, v in pairs])
    if types.is_struct(kind):
        return of_fields({field.name: field.type for field in kind})
    return None


def of_fields(kinds: dict[str, Any]) -> Convert | None:
    """Returns a function that shortens the values of a mapping whose fields have these types."""
    converters = {name: each for name, kind in kinds.items() if (each := converter(kind))}
    if not converters:
        return None

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        return row | {
            name: each(row[name]) for name, each in converters.items() if row[name] is not None
        }

    return convert


def parse_line(line: bytes, place: str) -> dict[str, Any]:
    """Returns the object of a line.

    Raises:
      InputError: the line is not UTF-8, not JSON, or no object; names the place. For the first line
        of a JSON array, or of an object of several lines, it names a command that mends the file.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"), parse_float=Written.read)
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8.") from None
    except (ValueError, RecursionError) as error:  # number too long, nesting too deep
        several_lines = line.strip() in (b"[", b"{")  # indented
        problem = f"not JSON ({getattr(error, 'msg', error)})"
    else:
        if isinstance(row, dict):
            return row
        several_lines = isinstance(row, list) and bool(row) and isinstance(row[0], dict)
        problem = f"a JSON object is expected, not {type(row).__name__}"
    start = line.decode("utf-8-sig", "replace").strip()[:1]
    file, _, number = place.rpartition(", line ")
    if several_lines and number == "1" and start in ("[", "{"):
        what, pattern = ("a JSON array", ".[]") if start == "[" else ("JSON of several lines", ".")
        files = f"{shlex.quote(file)} > {shlex.quote(f'{file}.jsonl')}"
        raise InputError(
            f"{file} is {what}, and one object a line is expected: write jq -c "
            f"{shlex.quote(pattern)} {files}"
        )
    raise InputError(f"{place}: {problem}.")
