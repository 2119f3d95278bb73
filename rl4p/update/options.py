"""The options that every update takes. Not an algorithm: fields only."""

from dataclasses import dataclass
from typing import Literal

from rl4p.bounds import Positive

Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """How a loss is summed and how often the optimizer steps.

    Attributes:
      aggregation: how per-token losses become one number (`update/aggregation.py`).
      aggregation_length: what `constant` divides each sequence's sum by, in tokens.
      epochs: passes over the batch in one step of the loop.
      minibatches: optimizer updates per pass.
      tokens_per_microbatch: tokens (padding included) whose activations are in the memory of a
        device at once; it changes memory and speed, never the gradient.
      microbatch_widths: loops at most that are compiled for rows of different lengths, the last for
        the shortest: more of them pad less and compile longer.
    """

    aggregation: Aggregation = "token_mean"
    aggregation_length: Positive = 1024
    epochs: Positive = 1
    minibatches: Positive = 1
    tokens_per_microbatch: Positive = 2048
    microbatch_widths: Positive = 8

    @property
    def needs(self) -> frozenset[str]:
        """With one update per step the old policy is the current one, and no extra forward runs."""
        several = self.epochs * self.minibatches > 1
        return frozenset({"proximal_logprobs"} if several else ())
