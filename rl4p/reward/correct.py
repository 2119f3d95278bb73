"""The correctness of the final answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.data.answer import final_answer, same_answer
from rl4p.types import Episode


@dataclass(frozen=True, kw_only=True)
class Correct:
    """A grade of 1 if the text after the last ``####`` equals the prompt's answer, else 0."""

    weight: float = 1.0

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        return [
            float(same_answer(final_answer(episode.response), episode.prompt.answer))
            for episode in episodes
        ]
