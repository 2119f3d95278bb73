"""The clipped surrogate of PPO."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveOne, NonNegative, Share
from rl4p.learner.ratio import RatioOptions, clamped_exp, clipped_surrogate


@dataclass(frozen=True, kw_only=True)
class PPO(RatioOptions):
    """PPO's clipped objective (1707.06347), per token, to minimise:

        rho = pi / pi_old
        loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))

    clip_high > clip_low is DAPO's clip-higher (2503.14476). The log-ratio is clamped to +-20 before
    the exponential. With one update per step and `old_policy=proximal`, rho is 1 and the gradient
    equals REINFORCE's; the clip acts from the second update of a step on.

    Attributes:
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
      dual_clip: c: where A < 0 the loss is at most -c A (1912.09729: c = 3). None disables it.
      delta: replaces the first rho of the formula by min(rho, delta) (two-sided clipping,
        INTELLECT-2, 2505.07291: delta = 4). From 1 + clip_high on, this is the same function as
        dual_clip; a smaller delta also narrows the clip of tokens with A > 0. None disables it.
    """

    ratio_options = frozenset({"clip_low", "clip_high", "dual_clip", "delta"})

    clip_low: Share = 0.2
    clip_high: NonNegative = 0.2
    dual_clip: AboveOne | None = None
    delta: AboveOne | None = None

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        advantages_BT = batch.advantages_BT
        ratio = clamped_exp(self.log_ratio(logprobs_BT, batch))
        loss_BT, extras = clipped_surrogate(ratio, advantages_BT, self.clip_low, self.clip_high)
        if self.delta is not None:
            clipped = jnp.clip(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high)
            bounded = jnp.minimum(ratio, self.delta)
            loss_BT = jnp.maximum(-advantages_BT * bounded, -advantages_BT * clipped)
            extras |= {"clip_delta": (ratio > self.delta) & (advantages_BT < 0)}
        if self.dual_clip is not None:
            bad = advantages_BT < 0
            loss_BT = jnp.where(bad, jnp.minimum(loss_BT, -advantages_BT * self.dual_clip), loss_BT)
            extras |= {"clip_dual": (ratio > self.dual_clip) & bad}
        return loss_BT, extras
