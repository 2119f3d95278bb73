r"""Equality of two mathematical answers, by the library math-verify.

A worker process runs this module (`workers.py`), because an answer of a few characters can take
years and all memory: ``9^{9^9}``. It imports neither JAX nor NumPy.

The answers are read by a LaTeX grammar only. The reader of plain expressions in math-verify is not
used, because it calls Python's ``eval`` on parts of the text.
"""

import functools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, Float, I, MatrixBase, Rational, log, nan, zoo

from rl4p.data.box import boxed
from rl4p.data.quantity import plain_notation, quantity
from rl4p.reward.measures import same_measure

LONGEST = 4096  # characters of an answer; a longer one equals nothing
DIGITS = 6  # of a decimal that stands for a fraction or a root
RELATIVE = 2e-6  # the same, for decimals within an expression: 0.166667 is 1/6
PRECISION = 60  # digits of values that have no decimals
MOST_LEADING_ZEROS = 10_000  # after the point
MIXED = re.compile(
    r"(?<![\d.^_}])(\d+) ?"
    r"(?:\\[cdt]?frac ?(?:\{(\d+)\}|(\d)) ?(?:\{(\d+)\}|(\d))|(?<= )(\d+)/(\d+))"
)
DECIMAL = re.compile(r"([0-9][0-9, ]*)?\.([0-9]+)")
SPACES = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\s+")
WORDS = re.compile(r"[a-zA-Z]{3,}(?: [a-zA-Z]+)*")
SAME = str.maketrans({"\u00d7": r"\times ", "\u00f7": "/", "\u03c0": r"\pi ", "\u221e": r"\infty "})
TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?")  # 3:45, which is no ratio
LISTED = re.compile(
    r"(\(|\[|\\\{) ?((?:[^()\[\]{}]|frac\{[^{}]*\}\{[^{}]*\})*?) ?(\)|\]|\\\})"
)  # brackets have no sizes here
ENCLOSED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
CONFIG = (LatexExtractionConfig(),)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it sets no timeouts


def grade(item: dict[str, str]) -> bool:
    """Returns whether an answer (``answer``) equals the reference (``reference``)."""
    return equal(item["reference"], item["answer"])


def equal(reference: str, given: str) -> bool:
    """Returns whether two answers are equal.

    Two numbers are equal if their exact values are. A decimal also equals a fraction and a root
    that it is the rounded value of, to at least six digits: 2.333333 is 7/3, and 0.0000004 is not
    1/3000000. This holds for the members of a list too, and at every size.

    Two times of day are equal if their parts are: as ratios, 12:30 would be 4:10. Second units,
    directions and dates count (`measures.py`). The letter i is sqrt(-1) if it is the only one.
    What divides by zero is equal to nothing but the same text.
    """
    if len(given) > LONGEST:
        return False
    expected, given = plain(reference), plain(given)
    if expected == given:
        return given != ""
    if expected.isdecimal() and given.isdecimal():
        return expected.lstrip("0") == given.lstrip("0")
    expected_time, given_time = TIME.fullmatch(expected), TIME.fullmatch(given)
    if expected_time and given_time:
        return [int(x or -1) for x in expected_time.groups()] == [
            int(x or -1) for x in given_time.groups()
        ]
    if re.search(r"[0-9'\u2032]|\\prime|dots", expected + given):
        known = same_measure(expected, given, equal)
        if known is not None:
            return known
    if "=" not in expected + given:
        known = same_numbers(expected, given)
        if known is not None:
            return known
    text = r"\\text(?:bf|it|rm)?\{([^{}]*)\}|\\math(?:rm|bf|it)\{([^{}]*)\}"
    words = re.sub(text, r"\1\2", expected).strip()
    if WORDS.fullmatch(words):  # the grammar would read a product of letters, in any order
        return words.casefold() == re.sub(text, r"\1\2", given).strip().casefold()
    pair = parse_answer(expected), parse_answer(given)
    for expression in (*pair[0], *pair[1]):
        if isinstance(expression, Basic | MatrixBase) and expression.has(zoo, nan):
            return False  # it divides by zero
    known = None if "%" in expected + given else same_values(*pair, (expected, given))
    if known is not None:
        return known
    places = max(leading_zeros(each) for each in (*pair[0], *pair[1], 0))
    same = verify(
        list(pair[0]),
        list(pair[1]),
        float_rounding=places + DIGITS,
        numeric_precision=places + 15,
        timeout_seconds=None,
    )
    return same or same_complex(*pair, expected + given)


@dataclass(frozen=True)
class WrittenNumber:
    """A number of an answer."""

    value: Fraction
    step: Fraction  # one unit of its last digit, if a decimal of at least `DIGITS` digits, else 0
    decimal: bool  # whether it is written with a decimal point
    percent: bool  # whether it has a percent sign

    def equals(self, other: "WrittenNumber") -> bool:
        """Returns whether two numbers are equal; 50% is both 50 and 1/2."""
        if self.percent is other.percent:
            return self.rounds_to(other, Fraction(1))
        own = Fraction(1, 100) if self.percent else Fraction(100)
        return self.rounds_to(other, Fraction(1)) or self.rounds_to(other, own)

    def rounds_to(self, other: "WrittenNumber", factor: Fraction) -> bool:
        if self.value * factor == other.value:
            return True
        # Of two decimals, and of a decimal and a whole number, every digit counts.
        rounded, exact = (self, other) if self.decimal else (other, self)
        if not rounded.decimal or exact.decimal or exact.value.denominator == 1:
            return False
        scale = factor if rounded is self else 1 / factor
        return rounded.rounds(exact.value / scale)

    def rounds(self, value: Fraction) -> bool:
        """Returns whether this decimal is a value that is rounded or cut off."""
        cut = abs(value) - abs(self.value)
        same_sign = (value < 0) is (self.value < 0)
        return same_sign and -self.step / 2 <= cut < self.step


def written(text: str) -> WrittenNumber | None:
    """Returns the number that a text is; None if it is anything else."""
    value = quantity(text)
    if value is None:
        return None
    decimal = DECIMAL.search(text) if "." in text else None
    step = Fraction(0)
    if decimal is not None:
        digits = re.sub("[, ]", "", decimal[1] or "") + decimal[2]
        if len(digits.lstrip("0")) >= DIGITS:
            step = Fraction(1, 10 ** len(decimal[2]))
    return WrittenNumber(value, step, bool(decimal), "%" in text or "percent" in text)


def numbers(text: str) -> tuple[str, list[WrittenNumber]] | None:
    """Returns the brackets around an answer and the numbers in it; None if it has anything else."""
    if listed := LISTED.fullmatch(text):
        brackets, text = listed[1] + listed[3], listed[2]
    elif (number := written(text)) is not None:
        return "", [number]
    else:
        brackets = ","
    for separator in (", ", ","):  # of 1,234, 5 the first comma is in a number
        parts = text.split(separator)
        known = [value for part in parts if (value := written(part)) is not None]
        if len(known) == len(parts) > 1:
            return brackets, known
    return None


def same_numbers(first: str, second: str) -> bool | None:
    """Returns whether two answers are the same numbers; None if only the library can decide.

    The library reads lists slowly: (3,5) takes 15 ms.
    """
    expected, given = numbers(first), numbers(second)
    if given is None or expected is None or given[0] != expected[0]:
        return None
    pair = (expected[1], given[1])
    if len(pair[0]) != len(pair[1]):
        return None
    if given[0] in (r"\{\}", ","):  # without an order
        pair = tuple(sorted(each, key=lambda number: number.value) for each in pair)
    return all(map(WrittenNumber.equals, *pair))


def same_values(first: Sequence[Any], second: Sequence[Any], texts: tuple[str, str]) -> bool | None:
    """Returns whether two expressions are numbers of the same value; None if they are no numbers.

    Decimals are taken as they are written, and values are computed to `PRECISION` digits. Decimals
    within one of the expressions may also be rounded, to about `DIGITS` digits, if the other value
    is no decimal itself.
    """
    numeric = [each for each in (*first[:1], *second[:1]) if isinstance(each, Expr)]
    if len(numeric) < 2 or not all(each.is_number for each in numeric):
        return None
    try:
        known = [written(text) for text in texts]
        exact: list[Any] = [
            each.replace(lambda x: isinstance(x, Float), lambda x: Rational(str(x)))
            if number is None
            else Rational(*number.value.as_integer_ratio())
            for each, number in zip(numeric, known, strict=True)
        ]
        if any(each.is_infinite for each in exact):
            return bool(exact[0] == exact[1])
        values = [each.evalf(PRECISION) for each in exact]
        for value in values:  # a complex number whose digits are known
            if value == 0 or not all(part.is_Number for part in value.as_real_imag()):
                return None
        if agree(values[0], values[1]):
            return True
        decimal = [each.has(Float) for each in numeric]
        other = exact[decimal.index(False)] if any(decimal) and not all(decimal) else None
        if other is None or is_decimal(other.doit()):
            return False
        number = known[decimal.index(True)]
        if number is None:
            return agree(values[0], values[1], RELATIVE)
        value = Fraction(str(other.evalf(PRECISION))) if other.is_real else None
        return value is not None and number.rounds(value)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return None


def agree(first: Any, second: Any, relative: float | None = None) -> bool:
    """Returns whether two numbers differ by at most a share of the larger one."""
    share = Float(10, PRECISION) ** (10 - PRECISION) if relative is None else relative
    return bool(abs(first - second) <= max(abs(first), abs(second)) * share)


def same_complex(first: Sequence[Any], second: Sequence[Any], text: str) -> bool:
    """Returns whether two expressions are the same number if their only letter i is sqrt(-1).

    It is not if it is an index, or a vector: bold, or with a hat or an arrow.
    """
    pair = [each for each in (*first[:1], *second[:1]) if isinstance(each, Expr)]
    letters: dict[Any, Any] = {x: I for each in pair for x in each.free_symbols}
    if (
        len(pair) < 2
        or {*map(str, letters)} != {"i"}
        or re.search(r"_\{?i|(?:bf|hat|vec|bm)\s*\{?\\?i", text)
    ):
        return False
    try:
        values = [each.subs(letters).doit().evalf(PRECISION) for each in pair]
        parts = [value.as_real_imag() for value in values]
        return all(x.is_Number and x.is_finite for part in parts for x in part) and agree(
            values[0], values[1]
        )
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return False


def is_decimal(value: Any) -> bool:
    """Returns whether a value can be written as a decimal."""
    if not value.is_Rational:
        return False
    rest = int(value.q)
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def leading_zeros(expression: Any) -> int:
    """Returns how many zeros the smallest number in an expression has after its point."""
    if not isinstance(expression, Basic | MatrixBase):
        return 0
    zeros = 0
    parts: list[Any] = [expression]
    while parts:
        part = parts.pop()
        if isinstance(part, Expr) and part.is_number:
            size = abs(part.evalf(15))
            if size.is_finite and 0 < size < 1:
                zeros = max(zeros, -int(log(size, 10).evalf(15)))
        else:
            parts += part.flat() if isinstance(part, MatrixBase) else part.args
    return min(zeros, MOST_LEADING_ZEROS)


def plain(text: str) -> str:
    """Returns an answer without the marks around it, and with one form for each sign."""
    text = text.strip()
    inner = boxed(text)
    text = text if inner is None else inner
    for start, end in ENCLOSED:
        if len(text) > len(start + end) and text.startswith(start) and text.endswith(end):
            text = text[len(start) : -len(end)]
            break
    text = re.sub(r"\\text\{(-?\$?\d[^{}]*)\}", r"\1", text)  # \text{5 ft}
    text = plain_notation(text).translate(SAME)
    text = SPACES.sub(" ", text.replace("...", r"\ldots ")).strip().removesuffix(".").strip()
    text = re.sub(r"\^ ?(?:\{ ?\\prime ?\}|\\prime(?![a-z]))", "'", text)
    text = text.replace("**", "^").removeprefix(r"\$").removeprefix("$")
    if re.fullmatch(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?", text):  # 12 345
        return text.replace(" ", "")
    return MIXED.sub(mixed, text)


def mixed(match: re.Match[str]) -> str:
    """Returns a mixed number in LaTeX; 3 4/4 is none, and a text that the library cannot read."""
    whole, numerator, denominator = filter(None, match.groups())
    if int(numerator) >= int(denominator):
        return rf"\text{{{match[0]}}}"
    return rf"{whole}\frac{{{numerator}}}{{{denominator}}}"


@functools.lru_cache(maxsize=256)  # the samples of a group share a reference
def parse_answer(text: str) -> tuple[Any, ...]:
    """Returns what math-verify reads in an answer; nothing if it is not mathematics."""
    percent = re.fullmatch(r"(.*?)\s*(?:\\?%|percent)", text, re.DOTALL)
    text = f"${percent[1]}$%" if percent else f"${text}$"
    return tuple(
        parse(text, extraction_config=CONFIG, fallback_mode="no_fallback", parsing_timeout=0)
    )
