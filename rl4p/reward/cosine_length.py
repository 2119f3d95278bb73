"""A grade that depends on correctness and on the length of the response."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4p.base.types import Episode, Finish
from rl4p.configuration.bounds import Positive
from rl4p.protocols.phases import Closes
from rl4p.protocols.reward import OpensTerm
from rl4p.protocols.traits import TermTraits


@dataclass(frozen=True, kw_only=True)
class CosineLength:
    """The cosine reward (2502.03373, section 4.2): length changes the grade of right and wrong.

        grade = end + (start - end) (1 + cos(pi n / L)) / 2
        grade = exceeded                                       if n >= L, or the response was cut

    n is the number of tokens of the response with its end token, and L is `max_tokens`. (start,
    end) are the grades of a response of length 0 and of length L: `right_start`, `right_end` if the
    response is right, otherwise `wrong_start`, `wrong_end`. By default a right response should be
    short, and a wrong one long, which encourages more thought.

    It takes the place of a term of correctness in the total. The paper's formula interpolates from
    the other end, its text and figures as here.

    Attributes:
      of: the term that decides whether a response is right: its grade is then at least 1. It must
        not be asynchronous, and its own weight must be 1, as it has no effect. Where it does not
        apply, this term does not apply. Where it is invalid, or the number of tokens is not known,
        this term is invalid.
      max_tokens: L, usually `max_response_tokens`.
      exceeded: the grade of a response that is too long, or was cut.
    """

    weight: float = 1.0
    of: Any
    max_tokens: Positive
    right_start: float = 2.0
    right_end: float = 1.0
    wrong_start: float = -10.0
    wrong_end: float = 0.0
    exceeded: float = -10.0

    def __post_init__(self) -> None:
        traits = TermTraits.read(self.of)
        gradable = callable(self.of) or isinstance(self.of, OpensTerm)
        if not gradable or traits.whole_groups:
            raise ValueError("of must be a term that grades responses one by one, as correct does.")
        if traits.weight not in (None, 1.0):
            raise ValueError(
                f"of.weight={traits.weight} has no effect: write 1.0, and set weight instead."
            )

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        return self.grades(self.of(episodes), episodes)

    def open(self) -> "OpenCosineLength":
        """Returns the term with `of` opened, if that can be opened."""
        return OpenCosineLength(self, self.of.open() if isinstance(self.of, OpensTerm) else self.of)

    def grades(
        self, grades: Sequence[float | None], episodes: Sequence[Episode]
    ) -> Sequence[float | None]:
        """Returns the grades of episodes, given the grades of `of`."""
        return [self.grade(grade, each) for grade, each in zip(grades, episodes, strict=True)]

    def grade(self, grade: float | None, episode: Episode) -> float | None:
        if grade is None:
            return None
        if not math.isfinite(grade) or episode.tokens is None:
            return math.nan
        if episode.tokens >= self.max_tokens or episode.finish in (Finish.LENGTH, Finish.ABORT):
            return self.exceeded
        right = (self.right_start, self.right_end)
        start, end = right if grade >= 1 else (self.wrong_start, self.wrong_end)
        return end + (start - end) * (1 + math.cos(math.pi * episode.tokens / self.max_tokens)) / 2


class OpenCosineLength:
    """A `CosineLength` whose `of` is open."""

    def __init__(self, term: CosineLength, live: Any) -> None:
        self.term = term
        self.live = live

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        return self.term.grades(self.live(episodes), episodes)

    def close(self) -> None:
        if isinstance(self.live, Closes):
            self.live.close()
