"""Probability ratios, the options of losses that have one, and the operations that losses share.

Every ratio is the exponential of a log-ratio that is 0 outside the loss mask and clamped to +-20.
Beyond the clamp the value is constant and the gradient is 0.
"""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.update_options import UpdateOptions


def log_ratio(logprobs_BT: Array, base_BT: Array, batch: TrainingBatch) -> Array:
    """Returns log(pi / pi_base), not clamped; 0 outside the loss mask, where both may be -inf."""
    return jnp.where(batch.loss_mask_BT, logprobs_BT - base_BT, 0.0)


def clamped_exp(log_ratio: Array) -> Array:
    return jnp.exp(jnp.clip(log_ratio, -20.0, 20.0))


def sequence_sum(values_BT: Array, batch: TrainingBatch) -> Array:
    """Returns the sum over each row's loss tokens: [B, 1]; 0 for a row without loss tokens."""
    return jnp.sum(jnp.where(batch.loss_mask_BT, values_BT, 0.0), axis=1, keepdims=True)


def sequence_lengths(batch: TrainingBatch, like: Array) -> Array:
    """Returns the number of loss tokens of each row, at least 1: [B, 1], in the dtype of `like`."""
    return jnp.maximum(jnp.sum(batch.loss_mask_BT, axis=1, keepdims=True, dtype=like.dtype), 1)


def sequence_mean(values_BT: Array, batch: TrainingBatch) -> Array:
    """Returns the mean over each row's loss tokens: [B, 1]; 0 for a row without loss tokens."""
    return sequence_sum(values_BT, batch) / sequence_lengths(batch, values_BT)


def sampler_logprobs(batch: TrainingBatch) -> Array:
    """Returns the sampler's logprobs, or the proximal policy's of tokens that no policy drew."""
    drawn_BT = batch.trajectories.policy_version_BT >= 0
    behaviour_BT = batch.trajectories.behaviour_logprobs_BT
    return jnp.where(drawn_BT, behaviour_BT, batch.scores["proximal_logprobs"])


def masked_advantages(batch: TrainingBatch) -> Array:
    """Returns the advantages, 0 outside the loss mask, for losses whose ratio a whole row shares.

    With a shared ratio, 0 x nan from outside the mask would reach the gradient of every token.
    """
    return jnp.where(batch.loss_mask_BT, batch.advantages_BT, 0.0)


def clipped_surrogate(
    ratio_BT: Array, advantages_BT: Array, low: float, high: float
) -> tuple[Array, dict[str, Array]]:
    """Returns max(-A rho, -A clip(rho, 1 - low, 1 + high)), and where the gradient is clipped."""
    clipped = jnp.clip(ratio_BT, 1.0 - low, 1.0 + high)
    return jnp.maximum(-advantages_BT * ratio_BT, -advantages_BT * clipped), {
        "clip_low": (ratio_BT < 1.0 - low) & (advantages_BT < 0),
        "clip_high": (ratio_BT > 1.0 + high) & (advantages_BT > 0),
    }


def token_covariance(batch: TrainingBatch) -> Array:
    """Returns (A - mean A)(log pi_proximal - mean log pi_proximal), with means over loss tokens.

    float32 [B, T], 0 outside the loss mask (2505.22617). The paper's code uses log pi of the
    current policy in each microbatch. Here log pi is the proximal policy's over the minibatch, so
    tokens are chosen once per update, whatever the split into microbatches.
    """
    mask = batch.loss_mask_BT

    def centred(x_BT: Array) -> Array:
        tokens = jnp.maximum(jnp.sum(mask, dtype=x_BT.dtype), 1)
        return jnp.where(mask, x_BT - jnp.sum(jnp.where(mask, x_BT, 0.0)) / tokens, 0.0)

    return centred(batch.advantages_BT) * centred(batch.scores["proximal_logprobs"])


@dataclass(frozen=True, kw_only=True)
class RatioOptions(UpdateOptions):
    """Options of an update with the ratio pi / pi_old.

    Attributes:
      old_policy: pi_old. `proximal` is the policy at the start of the step. The loss then limits
        what the step changes, and `correction` weighs for the difference between that policy and
        the one that sampled (decoupled PPO, 2110.00641; AReaL, 2505.24298). `behaviour` is the
        policy that sampled: the ratio is the full importance weight, the clip acts on stale tokens
        from the first update on, and `correction` should stay at none. Tokens that no policy
        sampled have `proximal` in both cases.
    """

    old_policy: Literal["proximal", "behaviour"] = "proximal"

    def idle_options(self) -> list[str]:
        """Returns as for any update; a ratio to the policy that sampled is not 1."""
        return [] if self.old_policy == "behaviour" else super().idle_options()

    def old_logprobs(self, batch: TrainingBatch) -> Array:
        """Returns log pi_old of the tokens: [B, T]."""
        if self.old_policy == "behaviour":
            return sampler_logprobs(batch)
        return batch.scores["proximal_logprobs"]

    def log_ratio(self, logprobs_BT: Array, batch: TrainingBatch) -> Array:
        """Returns log(pi / pi_old), not clamped: [B, T]; 0 outside the loss mask."""
        return log_ratio(logprobs_BT, self.old_logprobs(batch), batch)
