"""The answer to a crossword clue."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode
from rl4p.data.crossword import canonical, contains
from rl4p.data.extraction import TAGS, stated_answer, tagged_text
from rl4p.reward.ungradable import Ungradable, with_nan

TAG, CONTAINED = 0.02, 0.25


@dataclass(frozen=True, kw_only=True)
class Crossword:
    """A grade of 1 if a response states the answer to its clue, else 0 or a part.

    The response states its answer between ``<answer>`` and ``</answer>`` (`stated_answer`). It is
    compared with the reference in the canonical form (`canonical`): Unicode NFKD, accents
    off, & as AND, then the letters A-Z alone, so that spaces, hyphens and case do not count.

        exact    = 1 if the two are equal, else 0
        tags     = how many of <think>, </think>, <answer>, </answer> occur in the response
        contains = 1 if whole words anywhere in the response are the reference, else 0

        shaped   = min(1, exact + 0.02 tags / 4 + 0.25 contains)

    A sample is invalid (nan) if its reference has no letters.

    Attributes:
      shaped: whether to give a part of the grade for less than the exact answer. A shaped grade is
        1 only for an exact answer, so it can also decide on the accuracy of an evaluation. The part
        for `contains` can be earned by guessing many words: 0.27 at the most.
    """

    weight: float = 1.0
    shaped: bool = False

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        return with_nan([self.grade(each) for each in episodes], "graded")

    def grade(self, episode: Episode) -> float | Ungradable:
        prompt, response = episode.prompt, episode.response
        gold = canonical(prompt.answer)
        if not gold:
            return Ungradable(f"the answer {prompt.answer!r} of the row {prompt.id} has no letters")
        stated = stated_answer(episode)
        exact = float(stated is not None and canonical(stated) == gold)
        if not self.shaped:
            return exact
        tags = sum(tag in tagged_text(episode, TAGS) for tag in TAGS)
        text = re.sub("|".join(TAGS), " ", response)  # their names are no words of the answer
        return min(1.0, exact + TAG * tags / len(TAGS) + CONTAINED * contains(text, prompt.answer))
