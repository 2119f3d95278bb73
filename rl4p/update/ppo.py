"""The clipped surrogate of PPO."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.bounds import NonNegative, Share
from rl4p.types import Array, TrainingBatch
from rl4p.update.options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class PPO(UpdateOptions):
    """PPO's clipped objective (1707.06347), per token, to minimise:

        rho = pi / pi_proximal
        loss = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high))

    clip_high above clip_low is DAPO's clip-higher (2503.14476). The log-ratio is clamped to
    +-20 before the exponential. With one update per step rho is 1 and its gradient that of
    REINFORCE; the clip acts from the second update of a step on.
    """

    clip_low: Share = 0.2
    clip_high: NonNegative = 0.2

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        advantages_BT = batch.advantages_BT
        log_ratio_BT = logprobs_BT - batch.scores["proximal_logprobs"]
        ratio = jnp.exp(jnp.clip(log_ratio_BT, -20.0, 20.0))
        clipped = jnp.clip(ratio, 1.0 - self.clip_low, 1.0 + self.clip_high)
        loss_BT = jnp.maximum(-advantages_BT * ratio, -advantages_BT * clipped)
        return loss_BT, {
            "clip_low": (ratio < 1.0 - self.clip_low) & (advantages_BT < 0),
            "clip_high": (ratio > 1.0 + self.clip_high) & (advantages_BT > 0),
        }
