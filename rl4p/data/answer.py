"""Final answers in GSM8K's form: a worked text that ends with ``#### <number>``."""

import re
from decimal import Decimal, InvalidOperation

MARKER = "####"


def final_answer(text: str) -> str | None:
    """What stands after the last ``####``, to the end of its line; None without one."""
    head, found, tail = text.rpartition(MARKER)
    del head
    return tail.strip().split("\n")[0].strip() if found else None


def number(text: str) -> Decimal | None:
    """The number that a short answer states: ``$1,234.50``, ``-3``, ``12%``, ``7.``; else None.

    Thousands separators must stand where they belong, so that ``1,2`` is not taken for 12.
    """
    text = text.strip().removeprefix("$").removesuffix(".").removesuffix("%").strip()
    if not re.fullmatch(r"[+-]?\$?(\d{1,3}(,\d{3})+|\d{1,64})(\.\d{1,64})?", text):
        return None
    try:
        return Decimal(text.replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def same_answer(given: str | None, reference: str) -> bool:
    """True if both state the same number, or, where the reference is no number, the same text."""
    if given is None:
        return False
    expected = number(reference)
    if expected is None:
        return given.strip() == reference.strip()
    return number(given) == expected
