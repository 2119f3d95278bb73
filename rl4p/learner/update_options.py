"""The options that every update takes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rl4p.base.types import Microbatching
from rl4p.configuration.bounds import Positive

Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Options of an update: the aggregation of its loss, and the number of optimizer updates.

    Attributes:
      aggregation: how per-token losses become one number (`learner/aggregation.py`).
      aggregation_length: what `constant` divides each sequence's sum by, in tokens; else None.
      epochs: passes over the batch in one step of the loop.
      minibatches: optimizer updates per pass.
      tokens_per_microbatch: number of tokens (padding included) whose activations a device holds at
        once. The number changes memory and speed, never the gradient.
      microbatch_widths: maximum number of loops that are compiled for rows of different lengths.
        More loops pad less and take longer to compile. Where rows are packed, half of the loops are
        for microbatches of fewer rows.
      reads_advantages: whether the loss depends on the advantages (`compatibility.py`).
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
                "aggregation=constant divides by a length in tokens: set "
                "update.aggregation_length (Dr. GRPO uses max_response_tokens)."
            )
        if self.aggregation != "constant" and self.aggregation_length is not None:
            raise ValueError(
                f"aggregation_length={self.aggregation_length} works only with "
                f"aggregation=constant, not with {self.aggregation}: leave it out."
            )

    @property
    def microbatching(self) -> Microbatching:
        """Returns how the rows of a minibatch, and rows to score, are split into microbatches."""
        return Microbatching(tokens=self.tokens_per_microbatch, widths=self.microbatch_widths)

    @property
    def needs(self) -> frozenset[str]:
        """Returns `proximal_logprobs` if a step has several updates; with one, rho is 1 anyway."""
        several = self.epochs * self.minibatches > 1
        return frozenset({"proximal_logprobs"} if several else ())
