r"""Equality of two mathematical answers, by the library math-verify.

A worker process runs this module (`workers.py`), because an answer of a few characters can take
years and all memory: ``9^{9^9}``. It imports neither JAX nor NumPy.

The answers are read by a LaTeX grammar only. The reader of plain expressions in math-verify is not
used, because it calls Python's ``eval`` on parts of the text.
"""

import functools
import logging
import re
from fractions import Fraction
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr

from rl4p.data.answer import boxed, number
from rl4p.data.extraction import extract
from rl4p.data.quantity import quantity

LONGEST = 4096  # characters of an answer; a longer one equals nothing
SPACES = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![a-zA-Z])|~|\s+")
WORDS = re.compile(r"[a-zA-Z]{3,}(?: [a-zA-Z]+)*")
SAME = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u00d7": r"\times ",
        "\u00f7": "/",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
    }
)
LISTED = re.compile(r"(?:\\left)? ?(\(|\[|\\\{) ?([^()\[\]{}]*?) ?(?:\\right)? ?(\)|\]|\\\})")
ENCLOSED = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
CONFIG = (LatexExtractionConfig(),)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it sets no timeouts


def grade(item: dict[str, Any]) -> bool:
    """Returns whether the answer in a response equals the reference.

    Args:
      item: ``response``, ``reference``, and ``extract``, which says where the answer is.
    """
    given = extract(item["response"], item["extract"])
    return given is not None and equal(item["reference"], given)


def equal(reference: str, given: str) -> bool:
    """Returns whether two answers are equal. Two plain numbers are compared exactly."""
    if len(given) > LONGEST:
        return False
    expected, given = plain(reference), plain(given)
    if expected == given:
        return given != ""
    if not {"%", "="} & set(expected + given):
        if number(expected) is not None and number(given) is not None:
            return number(expected) == number(given)
        known = same_numbers(expected, given)
        if known is not None:
            return known
    text = r"\\text(?:bf|it|rm)?\{([^{}]*)\}|\\math(?:rm|bf|it)\{([^{}]*)\}"
    words = re.sub(text, r"\1\2", expected).strip()
    if WORDS.fullmatch(words):  # the grammar would read a product of letters, in any order
        return words.casefold() == re.sub(text, r"\1\2", given).strip().casefold()
    if "%" not in expected + given and far_apart(*parsed(expected), *parsed(given)):
        return False
    return verify(list(parsed(expected)), list(parsed(given)), timeout_seconds=None)


def numbers(text: str) -> tuple[str, list[Fraction]] | None:
    """Returns the brackets around an answer and the numbers in it; None if it has anything else.

    A single number has no brackets.
    """
    brackets, parts = "", [text]
    if (listed := LISTED.fullmatch(text)) and "," in listed[2]:
        brackets, parts = listed[1] + listed[3], listed[2].split(",")
    values = [quantity(part) for part in parts]
    known = [value for value in values if value is not None]
    return (brackets, known) if len(known) == len(values) else None


def same_numbers(first: str, second: str) -> bool | None:
    """Returns whether two answers are the same numbers; None if only the library can decide.

    The library reads lists slowly: (3,5) takes 15 ms.
    """
    given, expected = numbers(first), numbers(second)
    if given is None or expected is None or given[0] != expected[0]:
        return None
    pair = (given[1], expected[1])
    if len(pair[0]) != len(pair[1]):
        return None
    if given[0] == r"\{\}":  # a set has no order
        pair = (sorted(pair[0]), sorted(pair[1]))
    if pair[0] == pair[1]:
        return True
    return False if any(map(apart, *pair)) else None


def far_apart(*expressions: Any) -> bool:
    """Returns whether these are two numbers of clearly different values.

    The library would first try to simplify the difference of two numbers, which is slow.
    """
    if len(expressions) != 2 or not all(isinstance(x, Expr) and x.is_number for x in expressions):
        return False
    try:
        first, second = (complex(x.evalf(15)) for x in expressions)
        return apart(first, second)
    except (ArithmeticError, TypeError, ValueError):
        return False


def apart(first: Fraction | complex, second: Fraction | complex) -> bool:
    """Returns whether two values differ by more than rounding."""
    return abs(first - second) > 1e-3 * max(1, abs(first), abs(second))


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
    text = SPACES.sub(" ", text.translate(SAME)).strip().removesuffix(".").strip()
    text = text.replace("{,}", ",").replace("**", "^").removeprefix(r"\$").removeprefix("$")
    if re.fullmatch(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?", text):  # 12 345
        return text.replace(" ", "")
    return re.sub(r"(?<![\d.])(\d+) (\d+)/(\d+)", r"\1\\frac{\2}{\3}", text)  # 3 1/2


@functools.lru_cache(maxsize=256)  # the samples of a group share a reference
def parsed(text: str) -> tuple[Any, ...]:
    """Returns what math-verify reads in an answer; nothing if it is not mathematics."""
    percent = re.fullmatch(r"(.*?)\s*(?:\\?%|percent)", text, re.DOTALL)
    text = f"${percent[1]}$%" if percent else f"${text}$"
    return tuple(
        parse(text, extraction_config=CONFIG, fallback_mode="no_fallback", parsing_timeout=0)
    )
