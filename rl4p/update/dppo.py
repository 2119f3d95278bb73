"""Divergence Proximal Policy Optimization."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.configuration.bounds import AboveOne, Share
from rl4p.learner.ratio import clamped_exp, log_ratio, sampler_logprobs
from rl4p.learner.update_options import UpdateOptions
from rl4p.types import Array, TrainingBatch


@dataclass(frozen=True, kw_only=True)
class DPPO(UpdateOptions):
    """DPPO with the binary total variation (2602.04879), per token:

        dropped where A > 0 and pi - mu > delta, or A < 0 and mu - pi > delta
        loss = -A sg[min(pi / mu, ratio_cap)] log pi on the others, 0 on those

    The trust region is one of probabilities, not of ratios: a rare token may change its ratio
    freely, a likely one may not. The slope by log pi is that of -A pi / mu up to the cap (the form
    of verl). The paper's variants by KL and by the top-k tokens are left out.

    Attributes:
      delta: verl's figure for this variant.
      anchor: mu. `behaviour` is the sampler, as the paper argues for: the ratio is then the whole
        importance weight (leave `correction` at none). `proximal` is PPO's choice. Rows that no
        policy sampled always have the proximal one.
      ratio_cap: truncates the importance weight.
    """

    delta: Share = 0.15
    anchor: Literal["behaviour", "proximal"] = "behaviour"
    ratio_cap: AboveOne = 20.0

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        mask, advantages_BT = batch.loss_mask_BT, batch.advantages_BT
        proximal = self.anchor == "proximal"
        anchor_BT = batch.scores["proximal_logprobs"] if proximal else sampler_logprobs(batch)
        change_BT = jnp.exp(jnp.where(mask, logprobs_BT, 0.0)) - jnp.exp(
            jnp.where(mask, anchor_BT, 0.0)
        )
        high = (advantages_BT > 0) & (change_BT > self.delta)
        low = (advantages_BT < 0) & (change_BT < -self.delta)
        weight = jnp.minimum(clamped_exp(log_ratio(logprobs_BT, anchor_BT, batch)), self.ratio_cap)
        weight = jax.lax.stop_gradient(jnp.where(high | low, 0.0, weight))
        return -weight * advantages_BT * logprobs_BT, {"clip_low": low, "clip_high": high}
