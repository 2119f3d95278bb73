r"""Final answers of responses: the marks around them, and whether two of them are the same."""

import re
from decimal import Decimal, InvalidOperation

from rl4p.data.quantity import quantity

MARKER = "####"
BOX = re.compile(r"\\(?:boxed|fbox)\{")


def final_answer(text: str) -> str | None:
    """Returns the rest of the line after the last ``####``, or None if there is no ``####``."""
    _, marker, tail = text.rpartition(MARKER)
    return tail.strip().split("\n")[0].strip() if marker else None


def boxed(text: str) -> str | None:
    r"""Returns the content of the last ``\boxed{}`` or ``\fbox{}``; None if absent or not closed.

    Braces in it are matched; ``\{`` and ``\}`` are characters of the answer.
    """
    boxes = list(BOX.finditer(text))
    tail = text[boxes[-1].end() :] if boxes else ""
    depth, escaped = 1, False
    for i, character in enumerate(tail):
        if escaped or character == "\\":
            escaped = not escaped
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return tail[:i].strip()
    return None


def tagged(text: str) -> str | None:
    """Returns the text between the last ``<answer>`` and the ``</answer>`` after it, or None."""
    _, opened, tail = text.rpartition("<answer>")
    inside, closed, _ = tail.partition("</answer>")
    return inside.strip() if opened and closed else None


def number(text: str) -> Decimal | None:
    """Returns a number that stands alone (``$1,234.50``, ``-3``, ``12%``, ``7.``), else None.

    Thousands separators must be in the right places, so that ``1,2`` is not read as 12. `quantity`
    also reads fractions and numbers with units.
    """
    text = text.strip().removeprefix("$").removesuffix(".").removesuffix("%").strip()
    if not re.fullmatch(r"[+-]?\$?(\d{1,3}(,\d{3})+|\d{1,64})(\.\d{1,64})?", text):
        return None
    try:
        return Decimal(text.replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def same_answer(given: str | None, reference: str) -> bool:
    """Returns whether an answer is right.

    If the reference is a number without words, such as ``12``, ``$1,200`` or ``3/4``, the answer
    has to be exactly this number; it may have a unit (`quantity` lists the notations).
    Otherwise, it has to be the same text up to white space: ``5 apples`` is not ``5 pears``.
    """
    if given is None:
        return False
    expected = quantity(reference, units=False)
    if expected is None:
        return given.split() == reference.split()
    return quantity(given) == expected
