r"""Final answers of responses: the marks around them, and whether two of them are the same."""

from rl4p.data.quantity import quantity

MARKER = "####"


def final_answer(text: str) -> str | None:
    """Returns the rest of the line after the last ``####``, or None if there is no ``####``."""
    _, marker, tail = text.rpartition(MARKER)
    return tail.strip().split("\n")[0].strip() if marker else None


def tagged(text: str) -> str | None:
    """Returns the text between the last ``<answer>`` and the ``</answer>`` after it, or None."""
    _, opened, tail = text.rpartition("<answer>")
    inside, closed, _ = tail.partition("</answer>")
    return inside.strip() if opened and closed else None


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
