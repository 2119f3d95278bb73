"""Second-Moment Trust Policy Optimization."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.ratio import clamped_exp, log_ratio, sampler_logprobs
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class M2PO(UpdateOptions):
    """M2PO (2510.01161), for stale samples. The tokens with the largest

        m2 = (log pi_proximal - log pi_behaviour)^2

    are left out until the mean of m2 over the others is at most `threshold`. On the others, loss =
    -A rho with rho = pi / pi_proximal, without a clip.

    The choice is made once per update over the minibatch, with the proximal policy instead of the
    current one, as in AReaL (which then clips as PPO does; the paper does not). Tokens of equal m2
    are kept or left out together. If even the smallest m2 is too large, all are left out (AReaL
    keeps one). The importance weight is left to `correction`. m2 is 0 on rows that no policy
    sampled.

    Attributes:
      threshold: upper bound of the mean of m2; near 0 only on-policy tokens are kept.
    """

    reads = frozenset({"proximal_logprobs"})

    threshold: AboveZero = 0.04

    def prepare(self, batch: TrainingBatch) -> dict[str, Array]:
        """Returns `trusted`: true on the tokens of the minibatch that keep their loss."""
        proximal_BT = batch.scores["proximal_logprobs"]
        m2_BT = jnp.square(log_ratio(proximal_BT, sampler_logprobs(batch), batch))
        ranked = jnp.sort(jnp.where(batch.loss_mask_BT, m2_BT, jnp.inf).ravel())
        count = jnp.arange(1, ranked.size + 1, dtype=ranked.dtype)
        # The cut never divides a run of equal values.
        whole = ranked < jnp.append(ranked[1:], jnp.inf)
        kept = whole & (jnp.cumsum(ranked) <= self.threshold * count)
        largest = jnp.max(jnp.where(kept, ranked, -1.0))
        return {"trusted": batch.loss_mask_BT & (m2_BT <= largest)}

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        ratio = clamped_exp(log_ratio(logprobs_BT, batch.scores["proximal_logprobs"], batch))
        trusted = batch.scores["trusted"]
        return jnp.where(trusted, -batch.advantages_BT * ratio, 0.0), {"m2_masked": ~trusted}
