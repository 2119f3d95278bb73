r"""Final answers of responses: where they stand, and whether two of them are the same.

`extract` finds the final answer of a text by one of four rules:

    hashes   12 apples    of `... #### 12 apples`, GSM8K's format: the rest of the line
    boxed    \frac{3}{4}  of `... \boxed{\frac{3}{4}}.`, the format of MATH
    answer   12           of `... <answer> 12 </answer>`
    number   12           of `... makes 12 apples.`: the last number, in no particular format

Of several marked answers the last one counts. A box or a tag that is never closed belongs to a
response that was cut: it has no answer, and an earlier answer does not take its place.
"""

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Literal

from rl4p.data.quantity import last_quantity, quantity

Extraction = Literal["hashes", "boxed", "answer", "number"]
MARKER = "####"
BOX = re.compile(r"\\(?:boxed|fbox)\{")


def extract(text: str, how: Extraction | Sequence[Extraction]) -> str | None:
    """Returns the final answer of a text, or None if there is none.

    Args:
      how: one rule, or several that are tried in this order until one finds an answer. Each
        further rule also accepts responses that do not keep to the format.
    """
    rules = (how,) if isinstance(how, str) else how
    found = (RULES[rule](text) for rule in rules)
    return next((answer for answer in found if answer is not None), None)


def final_answer(text: str) -> str | None:
    """Returns the rest of the line after the last ``####``, or None if there is no ``####``."""
    head, found, tail = text.rpartition(MARKER)
    del head
    return tail.strip().split("\n")[0].strip() if found else None


def boxed(text: str) -> str | None:
    r"""Returns what stands in the last ``\boxed{}`` or ``\fbox{}``; None if absent or not closed.

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
    """Returns what stands between the last ``<answer>`` and the ``</answer>`` after it, or None."""
    head, found, tail = text.rpartition("<answer>")
    del head
    inside, closed, _ = tail.partition("</answer>")
    return inside.strip() if found and closed else None


RULES = {"hashes": final_answer, "boxed": boxed, "answer": tagged, "number": last_quantity}


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
    has to be exactly this number; it may have a unit (`quantity` lists what is read how).
    Otherwise, it has to be the same text up to white space: ``5 apples`` is not ``5 pears``.
    """
    if given is None:
        return False
    expected = quantity(reference, units=False)
    if expected is None:
        return given.split() == reference.split()
    return quantity(given) == expected
