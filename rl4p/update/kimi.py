"""The policy mirror descent of Kimi k1.5."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.ratio import log_ratio, sequence_lengths, sequence_sum
from rl4p.learner.update_options import Aggregation, UpdateOptions


@dataclass(frozen=True, kw_only=True)
class Kimi(UpdateOptions):
    """Kimi k1.5's policy mirror descent (2501.12599, section 2.3.2), per sequence:

        loss = -A log pi(y) + (tau / 2) (log pi(y) - log pi_proximal(y))^2

    This surrogate has the gradient that the paper gives, with log-probabilities of whole sequences
    and A = r - mean(r) (`advantage=dr_grpo`). The square is spread evenly over the row's tokens, so
    that `sequence_mean_token_sum`, the default here, gives the paper's mean over sequences. There
    is no exponential and no clamp. `dro` can square token by token instead.

    Attributes:
      tau: coefficient of the square; the default is ROLL's.
    """

    ratio_options = frozenset({"tau"})

    tau: NonNegative = 0.1
    aggregation: Aggregation = "sequence_mean_token_sum"

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        log_ratio_BT = log_ratio(logprobs_BT, batch.scores["proximal_logprobs"], batch)
        square_B1 = jnp.square(sequence_sum(log_ratio_BT, batch))
        penalty_B1 = self.tau / 2 * square_B1 / sequence_lengths(batch, logprobs_BT)
        penalty_BT = jnp.broadcast_to(penalty_B1, logprobs_BT.shape)
        return -batch.advantages_BT * logprobs_BT + penalty_BT, {"mirror_penalty": penalty_BT}
