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
    """DPPO with a binary divergence D of the probabilities pi and mu (2602.04879), per token:

        dropped where D > delta, and A > 0 and pi > mu, or A < 0 and pi < mu
        loss = -A sg[min(pi / mu, ratio_cap)] log pi on the other tokens, 0 on dropped tokens

        total_variation    D = |pi - mu|
        kl                 D = mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))

    The trust region limits probabilities, not ratios: the ratio of a rare token may change freely,
    the ratio of a likely token may not. Up to the cap, the derivative with respect to log pi equals
    the derivative of -A pi / mu (verl's form). The variants with the top-k tokens are omitted. In
    kl, 1 - mu and 1 - pi are at least 1e-8.

    Attributes:
      divergence: D.
      delta: largest divergence. The default is verl's for total_variation; for kl, verl takes 0.05.
      old_policy: mu. `behaviour` is the sampling policy, as the paper recommends: the ratio is then
        the full importance weight (leave `correction` at none). `proximal` is PPO's choice, and
        always applies to tokens that no policy sampled.
      ratio_cap: upper bound of the importance weight.
    """

    divergence: Literal["total_variation", "kl"] = "total_variation"
    delta: Share = 0.15
    old_policy: Literal["proximal", "behaviour"] = "behaviour"
    ratio_cap: AboveOne = 20.0

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        mask, advantages_BT = batch.loss_mask_BT, batch.advantages_BT
        log_pi_BT = jax.lax.stop_gradient(jnp.where(mask, logprobs_BT, 0.0))
        log_mu_BT = jnp.where(mask, self.old_logprobs(batch), 0.0)
        mu_BT = jnp.exp(log_mu_BT)
        change_BT = jnp.exp(log_pi_BT) - mu_BT
        divergence_BT = jnp.abs(change_BT)
        if self.divergence == "kl":
            others_BT, others_mu_BT = (
                jnp.maximum(-jnp.expm1(x), 1e-8) for x in (log_pi_BT, log_mu_BT)
            )
            divergence_BT = mu_BT * (log_mu_BT - log_pi_BT)
            divergence_BT += others_mu_BT * jnp.log(others_mu_BT / others_BT)
        far = divergence_BT > self.delta
        high = (advantages_BT > 0) & (change_BT > 0) & far
        low = (advantages_BT < 0) & (change_BT < 0) & far
        weight = jnp.minimum(clamped_exp(self.log_ratio(logprobs_BT, batch)), self.ratio_cap)
        weight = jax.lax.stop_gradient(jnp.where(high | low, 0.0, weight))
        return -weight * advantages_BT * logprobs_BT, {"clip_low": low, "clip_high": high}
