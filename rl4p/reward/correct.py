"""The correctness of the final answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode
from rl4p.data.extraction import Extraction, answer_of, same_answer


@dataclass(frozen=True, kw_only=True)
class Correct:
    r"""A grade of 1 if the final answer of the response equals the prompt's answer, else 0.

    `rl4p.data.quantity` lists which numbers are equal; other answers are compared as texts.

    Attributes:
      extract: where the final answer stands: `hashes` after the last ``####``, `boxed` in the last
        ``\boxed{}``, `answer` between the last ``<answer>`` and ``</answer>``, `number` the last
        number of the text, `stated` the number in the first of these places that has one, or in
        a sentence such as ``The answer is 12`` (`rl4p.data.extraction`). A list is tried in its
        order: [boxed, hashes]. Thoughts are left out.
    """

    weight: float = 1.0
    extract: Extraction | tuple[Extraction, ...] = "hashes"

    def __post_init__(self) -> None:
        rules = self.extract
        if not isinstance(rules, str) and not (rules and len(set(rules)) == len(rules)):
            raise ValueError(
                f"extract={list(rules)} must name at least one place, and none twice: write "
                "hashes, or [boxed,hashes]."
            )

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        return [
            float(same_answer(answer_of(episode, self.extract), episode.prompt.answer))
            for episode in episodes
        ]
