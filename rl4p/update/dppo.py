"""Divergence Proximal Policy Optimization."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveOne, Share
from rl4p.learner.ratio import RatioOptions, clamped_exp


@dataclass(frozen=True, kw_only=True)
class DPPO(RatioOptions):
    """DPPO with the binary total variation (2602.04879), per token:

        dropped where A > 0 and pi - mu > delta, or A < 0 and mu - pi > delta
        loss = -A sg[min(pi / mu, ratio_cap)] log pi on the other tokens, 0 on dropped tokens

    The trust region limits probabilities, not ratios: the ratio of a rare token may change freely,
    the ratio of a likely token may not. Up to the cap, the derivative with respect to log pi equals
    the derivative of -A pi / mu (verl's form). The variants with KL and with the top-k tokens are
    omitted.

    Attributes:
      delta: largest change of a probability; the default is verl's for this variant.
      old_policy: mu. `behaviour` is the sampling policy, as the paper recommends: the ratio is then
        the full importance weight (leave `correction` at none). `proximal` is PPO's choice, and
        always applies to tokens that no policy sampled.
      ratio_cap: upper bound of the importance weight.
    """

    delta: Share = 0.15
    old_policy: Literal["proximal", "behaviour"] = "behaviour"
    ratio_cap: AboveOne = 20.0

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        mask, advantages_BT = batch.loss_mask_BT, batch.advantages_BT
        change_BT = jnp.exp(jnp.where(mask, logprobs_BT, 0.0)) - jnp.exp(
            jnp.where(mask, self.old_logprobs(batch), 0.0)
        )
        high = (advantages_BT > 0) & (change_BT > self.delta)
        low = (advantages_BT < 0) & (change_BT < -self.delta)
        weight = jnp.minimum(clamped_exp(self.log_ratio(logprobs_BT, batch)), self.ratio_cap)
        weight = jax.lax.stop_gradient(jnp.where(high | low, 0.0, weight))
        return -weight * advantages_BT * logprobs_BT, {"clip_low": low, "clip_high": high}
