r"""Rules that find the final answer of a response.

    hashes   12 apples    of `... #### 12 apples`, GSM8K's format: the rest of the line
    boxed    \frac{3}{4}  of `... \boxed{\frac{3}{4}}.`, the format of MATH
    answer   12           of `... <answer> 12 </answer>`
    number   12           of `... makes 12 apples.`: the last number, in no particular format
    stated   12           of any of them, and of `The answer is 12, since ...` (`stated.py`)

Thoughts are cut off before every rule (`thoughts.py`). Of several marked answers the last one
counts. A box or a tag that is never closed belongs to a response that was cut: it has no answer,
and an earlier answer does not take its place.
"""

import re
from collections.abc import Sequence
from typing import Literal

from rl4p.base.types import Episode
from rl4p.data.answer import final_answer, tagged
from rl4p.data.box import BOX, boxed
from rl4p.data.quantity import last_quantity
from rl4p.data.stated import stated
from rl4p.data.thoughts import after_thoughts

Extraction = Literal["hashes", "boxed", "answer", "number", "stated"]
RULES = {
    "hashes": final_answer,
    "boxed": boxed,
    "answer": tagged,
    "number": last_quantity,
    "stated": stated,
}

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MARKS = {"boxed": re.compile(BOX), "answer": re.compile("<answer>")}


def extract(
    text: str, how: Extraction | Sequence[Extraction], generation_prompt: str | None = None
) -> str | None:
    """Returns the final answer of a response, or None if there is none.

    Args:
      how: one rule, or several that are tried in this order until one finds an answer. Each
        further rule also accepts responses that do not keep to the format.
      generation_prompt: what the chat template wrote before the response (`Prompt`).
    """
    rest = after_thoughts(text, generation_prompt)
    if rest is None:
        return None
    for rule in (how,) if isinstance(how, str) else how:
        answer = RULES[rule](rest)
        if answer is not None or (rule in MARKS and MARKS[rule].search(rest)):  # cut
            return answer
    return None


def answer_of(episode: Episode, how: Extraction | Sequence[Extraction]) -> str | None:
    """Returns the final answer of an episode, or None if there is none."""
    return extract(episode.response, how, episode.prompt.generation_prompt)


def rest_of(episode: Episode) -> str | None:
    """Returns the response after its thoughts; None if it was cut while thinking."""
    return after_thoughts(episode.response, episode.prompt.generation_prompt)


def stated_answer(episode: Episode) -> str | None:
    """Returns the text between the last ``<answer>`` and the ``</answer>`` after it.

    Without ``<answer>``, it is all of the response after its thoughts. None stands for a response
    that was cut: its last tag was never closed.
    """
    rest = rest_of(episode)
    if rest is not None and "<answer>" in rest:
        return tagged(rest)
    return None if rest is None else rest.strip()


def tagged_text(episode: Episode, tags: Sequence[str]) -> str:
    """Returns the response with the text before it that the chat template wrote.

    Where that text is not known, a response that closes its thoughts without having opened them
    shows that the template wrote ``<think>``, which then is put before it.
    """
    before, response = episode.prompt.generation_prompt, episode.response
    if before is None:
        opened = response.partition("</think>")
        before = "<think>" if opened[1] and "<think>" not in opened[0] else ""
        before = "" if "<think>" in response or "<think>" not in tags else before
    return before + response
