"""The options that every update takes. Not an algorithm: fields only."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rl4p.configuration.bounds import Positive
from rl4p.types import Microbatching

Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """How a loss is summed and how often the optimizer steps.

    Attributes:
      aggregation: how per-token losses become one number (`update/aggregation.py`).
      aggregation_length: what `constant` divides each sequence's sum by, in tokens; None with the
        others.
      epochs: passes over the batch in one step of the loop.
      minibatches: optimizer updates per pass.
      tokens_per_microbatch: tokens (padding included) whose activations are in the memory of a
        device at once; it changes memory and speed, never the gradient.
      microbatch_widths: loops at most that are compiled for rows of different lengths, the last for
        the shortest: more of them pad less and compile longer.
      reads_advantages: whether the loss looks at advantages (`compatibility.py`).
    """

    reads_advantages: ClassVar[bool] = True

    aggregation: Aggregation = "token_mean"
    aggregation_length: Positive | None = None
    epochs: Positive = 1
    minibatches: Positive = 1
    tokens_per_microbatch: Positive = 2048
    microbatch_widths: Positive = 8

    def __post_init__(self) -> None:
        if self.aggregation == "constant" and self.aggregation_length is None:
            raise ValueError(
                "aggregation=constant divides by a length in tokens: say which, by "
                "update.aggregation_length (Dr. GRPO takes max_response_tokens)."
            )
        if self.aggregation != "constant" and self.aggregation_length is not None:
            raise ValueError(
                f"aggregation_length={self.aggregation_length} is read by aggregation=constant "
                f"alone, and this is {self.aggregation}: leave it out."
            )

    @property
    def microbatching(self) -> Microbatching:
        """Returns how the rows of a minibatch, and those to score, are divided."""
        return Microbatching(tokens=self.tokens_per_microbatch, widths=self.microbatch_widths)

    @property
    def needs(self) -> frozenset[str]:
        """With one update per step the old policy is the current one, and no extra forward runs."""
        several = self.epochs * self.minibatches > 1
        return frozenset({"proximal_logprobs"} if several else ())
