"""The covariance of advantage and log-probability, per token."""

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch


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
