"""What every sampler shares. Not an algorithm: how long a response is, and how it is drawn."""

from dataclasses import dataclass

from rl4p.configuration.bounds import Natural, NonNegative, Positive, TopShare
from rl4p.types import Sampling


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """How responses are drawn.

    Attributes:
      max_response_tokens: the limit of a response, the end token included.
      temperature, top_k, top_p: the distribution (`types.Sampling`).
    """

    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    top_k: Natural = 0
    top_p: TopShare = 1.0

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
