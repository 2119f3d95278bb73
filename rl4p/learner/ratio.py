"""Probability ratios, and what the losses do with them.

Every ratio is the exponential of a log-ratio that is 0 outside the loss mask and clamped to +-20:
beyond it the value stays and the gradient is 0.
"""

import jax.numpy as jnp

from rl4p.types import Array, TrainingBatch


def log_ratio(logprobs_BT: Array, base_BT: Array, batch: TrainingBatch) -> Array:
    """log(pi / pi_base), 0 outside the loss mask (where both may be -inf), not clamped."""
    return jnp.where(batch.loss_mask_BT, logprobs_BT - base_BT, 0.0)


def clamped_exp(log_ratio: Array) -> Array:
    return jnp.exp(jnp.clip(log_ratio, -20.0, 20.0))


def sequence_sum(values_BT: Array, batch: TrainingBatch) -> Array:
    """Sum over each row's loss tokens: [B, 1]; 0 for a row without any."""
    return jnp.sum(jnp.where(batch.loss_mask_BT, values_BT, 0.0), axis=1, keepdims=True)


def sequence_lengths(batch: TrainingBatch, like: Array) -> Array:
    """Loss tokens of each row, at least 1: [B, 1], of the type of `like`."""
    return jnp.maximum(jnp.sum(batch.loss_mask_BT, axis=1, keepdims=True, dtype=like.dtype), 1)


def sequence_mean(values_BT: Array, batch: TrainingBatch) -> Array:
    """Mean over each row's loss tokens: [B, 1]; 0 for a row without any."""
    return sequence_sum(values_BT, batch) / sequence_lengths(batch, values_BT)


def sampler_logprobs(batch: TrainingBatch) -> Array:
    """The sampler's logprobs; those of the proximal policy on rows that no policy sampled."""
    sampled_B1 = batch.trajectories.policy_version_B[:, None] >= 0
    behaviour_BT = batch.trajectories.behaviour_logprobs_BT
    return jnp.where(sampled_B1, behaviour_BT, batch.scores["proximal_logprobs"])


def masked_advantages(batch: TrainingBatch) -> Array:
    """The advantages, 0 outside the loss mask: for losses whose ratio a whole row shares.

    There the gradient of a token passes through its row, and 0 x nan from outside would too.
    """
    return jnp.where(batch.loss_mask_BT, batch.advantages_BT, 0.0)


def clipped_surrogate(
    ratio_BT: Array, advantages_BT: Array, low: float, high: float
) -> tuple[Array, dict[str, Array]]:
    """max(-A rho, -A clip(rho, 1 - low, 1 + high)), and where the clip takes the gradient."""
    clipped = jnp.clip(ratio_BT, 1.0 - low, 1.0 + high)
    return jnp.maximum(-advantages_BT * ratio_BT, -advantages_BT * clipped), {
        "clip_low": (ratio_BT < 1.0 - low) & (advantages_BT < 0),
        "clip_high": (ratio_BT > 1.0 + high) & (advantages_BT > 0),
    }
