r"""Rules that find the final answer of a response.

    hashes   12 apples    of `... #### 12 apples`, GSM8K's format: the rest of the line
    boxed    \frac{3}{4}  of `... \boxed{\frac{3}{4}}.`, the format of MATH
    answer   12           of `... <answer> 12 </answer>`
    number   12           of `... makes 12 apples.`: the last number, in no particular format
    stated   12           of any of them, and of `The answer is 12, since ...` (`stated.py`)

Of several marked answers the last one counts. A box or a tag that is never closed belongs to a
response that was cut: it has no answer, and an earlier answer does not take its place.
"""

from collections.abc import Sequence
from typing import Literal

from rl4p.data.answer import boxed, final_answer, tagged
from rl4p.data.quantity import last_quantity
from rl4p.data.stated import stated

Extraction = Literal["hashes", "boxed", "answer", "number", "stated"]
RULES = {
    "hashes": final_answer,
    "boxed": boxed,
    "answer": tagged,
    "number": last_quantity,
    "stated": stated,
}


def extract(text: str, how: Extraction | Sequence[Extraction]) -> str | None:
    """Returns the final answer of a text, or None if there is none.

    Args:
      how: one rule, or several that are tried in this order until one finds an answer. Each
        further rule also accepts responses that do not keep to the format.
    """
    rules = (how,) if isinstance(how, str) else how
    answers = (RULES[rule](text) for rule in rules)
    return next((answer for answer in answers if answer is not None), None)
