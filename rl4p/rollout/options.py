"""The options that all samplers share: the length of a response and its distribution."""

from dataclasses import dataclass

from rl4p.configuration.bounds import Natural, NonNegative, Positive, TopShare
from rl4p.types import Sampling


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """The length and the distribution of responses.

    Attributes:
      max_response_tokens: the longest response in tokens, the end token included.
      temperature, top_k, top_p: the sampling distribution (`types.Sampling`).
    """

    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    top_k: Natural = 0
    top_p: TopShare = 1.0

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
