"""A penalty on responses that come close to the limit on tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode
from rl4p.configuration.bounds import Positive, TopShare


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """The soft overlong punishment of DAPO (2503.14476, equation 13): a grade from -1 to 0.

        0                                    if n <= L - C
        ((L - C) - n) / C                    if L - C < n <= L
        -1                                   if n > L

    n is the number of tokens of the response with its end token, L is `max_tokens`, and C is
    `ramp` x L. A response that was cut at L gets -1. A response whose number of tokens is not known
    is invalid: for example a text of a file, or of a server that does not report the number.

    Attributes:
      max_tokens: L, usually `max_response_tokens`.
      ramp: the share of L at its end over which the grade falls; DAPO's is 4096 of 20480.
    """

    weight: float = 1.0
    max_tokens: Positive
    ramp: TopShare = 0.2

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        return [self.grade(episode.tokens) for episode in episodes]

    def grade(self, tokens: int | None) -> float:
        if tokens is None:
            return float("nan")
        ramp = self.ramp * self.max_tokens
        return -min(1.0, max(0.0, (tokens - (self.max_tokens - ramp)) / ramp))
