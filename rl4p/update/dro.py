"""Direct Reward Optimisation."""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.ratio import log_ratio, sampler_logprobs, sequence_lengths, sequence_sum
from rl4p.learner.update_options import Aggregation, UpdateOptions


@dataclass(frozen=True, kw_only=True)
class DRO(UpdateOptions):
    """DRO (2405.19107), the policy's part of the paper's quadratic loss:

        loss = -A log pi + (tau / 2) (log pi - log pi_anchor)^2

    with A = r - V. Any baseline serves as V: the paper learns one, and its loss for V is omitted.

    Attributes:
      tau: coefficient of the square.
      anchor: `reference`, as in the paper, or `behaviour`, the sampling policy, as in Tinker's
        `dro`. The behaviour of rows that no policy sampled is the proximal policy.
      level: the level of log pi: the whole `sequence`, as in the paper, or each `token`, as in
        Tinker. The square of a sequence is spread evenly over its tokens, so that
        `sequence_mean_token_sum`, the default here, gives the mean over sequences at either level.
    """

    tau: NonNegative = 0.1
    anchor: Literal["reference", "behaviour"] = "reference"
    level: Literal["sequence", "token"] = "sequence"
    aggregation: Aggregation = "sequence_mean_token_sum"

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | ({"reference_logprobs"} if self.anchor == "reference" else set())

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        reference = self.anchor == "reference"
        anchor_BT = batch.scores["reference_logprobs"] if reference else sampler_logprobs(batch)
        square_BT = log_ratio(logprobs_BT, anchor_BT, batch)
        if self.level == "sequence":
            sum_B1 = sequence_sum(square_BT, batch)
            square_BT = jnp.square(sum_B1) / sequence_lengths(batch, logprobs_BT)
        else:
            square_BT = jnp.square(square_BT)
        penalty_BT = jnp.broadcast_to(self.tau / 2 * square_BT, logprobs_BT.shape)
        return -batch.advantages_BT * logprobs_BT + penalty_BT, {"dro_penalty": penalty_BT}
