"""Final answers in GSM8K's format: a worked solution that ends with ``#### <number>``."""

import re
from decimal import Decimal, InvalidOperation

MARKER = "####"


def final_answer(text: str) -> str | None:
    """Returns the rest of the line after the last ``####``, or None if there is no ``####``."""
    head, found, tail = text.rpartition(MARKER)
    del head
    return tail.strip().split("\n")[0].strip() if found else None


def number(text: str) -> Decimal | None:
    """Returns the number in a short answer (``$1,234.50``, ``-3``, ``12%``, ``7.``), else None.

    Thousands separators must be in the right places, so that ``1,2`` is not read as 12.
    """
    text = text.strip().removeprefix("$").removesuffix(".").removesuffix("%").strip()
    if not re.fullmatch(r"[+-]?\$?(\d{1,3}(,\d{3})+|\d{1,64})(\.\d{1,64})?", text):
        return None
    try:
        return Decimal(text.replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def same_answer(given: str | None, reference: str) -> bool:
    """Returns whether both are the same number, or the same text if the reference is no number."""
    if given is None:
        return False
    expected = number(reference)
    if expected is None:
        return given.strip() == reference.strip()
    return number(given) == expected
