"""A penalty on repeated pieces of text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rl4p.base.types import Episode
from rl4p.configuration.bounds import Positive


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The share of a response's n-grams that stood in it before, as a grade from -1 to 0.

        grade = -(1 - (number of different n-grams) / (number of n-grams))

    A response with fewer than n pieces has the grade 0. 2502.03373 (section 4.3) penalizes repeated
    n-grams too, token by token; this is one number for the whole response.

    Attributes:
      n: the number of pieces of an n-gram.
      of: the pieces: `words` between white space, in lower case, or `characters`, for text
        without spaces.
    """

    weight: float = 0.5
    n: Positive = 4
    of: Literal["words", "characters"] = "words"

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        return [self.grade(episode.response) for episode in episodes]

    def grade(self, response: str) -> float:
        pieces = response.lower().split() if self.of == "words" else response
        count = len(pieces) - self.n + 1
        if count < 1:
            return 0.0
        different = len({tuple(pieces[i : i + self.n]) for i in range(count)})
        return different / count - 1
