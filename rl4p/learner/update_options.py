"""The options that every update takes, and the aggregation of its loss.

The weights of the aggregation come from the whole minibatch, so the loss is a plain weighted sum.
It does not depend on the number of microbatches, on padding, or on the width of the batch.
"""

from dataclasses import MISSING, dataclass, fields
from typing import ClassVar, Literal

import jax.numpy as jnp

from rl4p.base.types import Array, Microbatching
from rl4p.configuration.bounds import NonNegative, Positive

Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Options of an update: the aggregation of its loss, and the number of optimizer updates.

    Attributes:
      aggregation: how per-token losses become one number (`aggregation_weights`).
      aggregation_length: what `constant` divides each sequence's sum by, in tokens; else None.
      epochs: passes over the batch in one step of the loop.
      minibatches: optimizer updates per pass.
      tokens_per_microbatch: number of tokens (padding included) whose activations a device holds at
        once. The number changes memory and speed, never the gradient.
      microbatch_widths: maximum number of loops that are compiled for rows of different lengths.
        More loops pad less and take longer to compile. Where rows are packed, half of the loops are
        for microbatches of fewer rows.
      router_loss: the coefficient of the load-balancing loss of a model with experts, over all
        tokens of the minibatch but padding (`router.balance_loss`). Above 0 there is another
        forward pass, which counts the choices, and the rows of a group do not share their prompt.
      router_bias_rate: how far the bias by which a router chooses moves at each optimizer update,
        up for an expert with less than the mean load and down for one with more (2408.15664,
        2412.19437; `router.balanced`). The load is of the same tokens as that of `router_loss`, and
        the rows of a group do not share their prompt either.
      likelihood_loss: the coefficient of the mean of -log pi over the tokens of samples that are
        right, by a grade of `evaluation.term` of at least 1 (VAPO, 2504.05118; 0.1 there).
      observation_loss: the coefficient of the mean of -log pi over the tokens that the environment
        said after the first turn, with the markers of messages (ECHO, 2605.24517; 0.05 there).
      reads_advantages: whether the loss depends on the advantages (`compatibility.py`).
      ratio_options: the options that act only where the ratio to an older policy is not 1.
      reads: the scores that the update needs however many optimizer updates a step has.
    """

    reads_advantages: ClassVar[bool] = True
    ratio_options: ClassVar[frozenset[str]] = frozenset()
    reads: ClassVar[frozenset[str]] = frozenset()

    aggregation: Aggregation = "token_mean"
    aggregation_length: Positive | None = None
    epochs: Positive = 1
    minibatches: Positive = 1
    tokens_per_microbatch: Positive = 2048
    microbatch_widths: Positive = 8
    router_loss: NonNegative = 0.0
    router_bias_rate: NonNegative = 0.0
    likelihood_loss: NonNegative = 0.0
    observation_loss: NonNegative = 0.0

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

    def idle_options(self) -> list[str]:
        """Returns a sentence for each changed option of a ratio that is 1 in every update."""
        if self.epochs * self.minibatches > 1:
            return []
        return [
            f"update.{each.name}={value} has no effect, because a step has one "
            "update, in which the ratio of the loss is 1: set update.minibatches or "
            "update.epochs above 1, or leave it out."
            for each in fields(self)
            if each.name in self.ratio_options and each.default is not MISSING
            if (value := getattr(self, each.name)) != each.default
        ]

    @property
    def microbatching(self) -> Microbatching:
        """Returns how the rows of a minibatch, and rows to score, are split into microbatches."""
        return Microbatching(tokens=self.tokens_per_microbatch, widths=self.microbatch_widths)

    @property
    def needs(self) -> frozenset[str]:
        """Returns the scores that the update needs: `reads`, and those of its options.

        A step of several updates needs `proximal_logprobs` (otherwise rho is 1), and
        `likelihood_loss` needs `right`.
        """
        several = self.epochs * self.minibatches > 1
        own = {"right"} if self.likelihood_loss else set()
        return self.reads | own | ({"proximal_logprobs"} if several else set())


def aggregation_weights(mask_BT: Array, aggregation: Aggregation, length: int | None) -> Array:
    """Returns weights w_BT, 0 outside the mask, such that the loss is sum(w_BT * loss_BT).

    l_b is the number of loss tokens of sequence b, and N the number of sequences that have any:

        token_mean                 1 / sum(l)          every token counts the same
        sequence_mean_token_mean   1 / (N l_b)         every sequence counts the same (GRPO's paper)
        sequence_mean_token_sum    1 / N
        constant                   1 / (N length)      Dr. GRPO (2503.20783)
    """
    mask = mask_BT.astype(jnp.float32)
    tokens_B1 = jnp.sum(mask, axis=1, keepdims=True)
    sequences = jnp.maximum(jnp.sum(tokens_B1 > 0, dtype=jnp.float32), 1)
    match aggregation:
        case "token_mean":
            return mask / jnp.maximum(jnp.sum(mask), 1)
        case "sequence_mean_token_mean":
            return mask / jnp.maximum(tokens_B1, 1) / sequences
        case "sequence_mean_token_sum":
            return mask / sequences
        case "constant":
            assert length is not None  # `UpdateOptions` guarantees it
            return mask / sequences / length
