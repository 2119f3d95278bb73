"""Geometric-Mean Policy Optimization."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.ratio import RatioOptions, clamped_exp, masked_advantages, sequence_mean
from rl4p.learner.update_options import Aggregation


@dataclass(frozen=True, kw_only=True)
class GMPO(RatioOptions):
    """GMPO (2507.20673), with log-ratios clipped on the side to which the advantage pushes:

        c_t = min(log rho_t, clip_high) where A_t > 0, max(log rho_t, -clip_low) where A_t < 0
        loss = -A exp(mean_t c_t), on every token of the row

    rho is pi / pi_old. `sequence_mean_token_mean`, the default here, gives the paper's mean
    over sequences; if A differs between tokens of a row, the row uses its mean of A (as in verl).
    The mean log-ratio is clamped to +-20 before the exponential.

    Attributes:
      clip_low, clip_high: bounds of the log-ratio: the paper's clip is (e^-0.4, e^0.4).
    """

    ratio_options = frozenset({"clip_low", "clip_high"})

    clip_low: NonNegative = 0.4
    clip_high: NonNegative = 0.4
    aggregation: Aggregation = "sequence_mean_token_mean"

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        advantages_BT = masked_advantages(batch)
        log_ratio_BT = self.log_ratio(logprobs_BT, batch)
        high = (log_ratio_BT > self.clip_high) & (advantages_BT > 0)
        low = (log_ratio_BT < -self.clip_low) & (advantages_BT < 0)
        clipped_BT = jnp.where(high, self.clip_high, jnp.where(low, -self.clip_low, log_ratio_BT))
        ratio_B1 = clamped_exp(sequence_mean(clipped_BT, batch))
        return -advantages_BT * ratio_B1, {"clip_low": low, "clip_high": high}
