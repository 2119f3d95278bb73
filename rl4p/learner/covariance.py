"""The covariance of advantage and log-probability, token by token."""

import jax.numpy as jnp

from rl4p.types import Array, TrainingBatch


def token_covariance(batch: TrainingBatch) -> Array:
    """(A - mean A)(log pi_proximal - mean log pi_proximal), the means over all loss tokens.

    float32 [B, T], 0 outside the loss mask (2505.22617). The paper's code takes log pi
    of the current policy in each microbatch; here it is the proximal policy over the minibatch, so
    that the choice is made once and does not depend on how the minibatch is split.
    """
    mask = batch.loss_mask_BT

    def centred(x_BT: Array) -> Array:
        tokens = jnp.maximum(jnp.sum(mask, dtype=x_BT.dtype), 1)
        return jnp.where(mask, x_BT - jnp.sum(jnp.where(mask, x_BT, 0.0)) / tokens, 0.0)

    return centred(batch.advantages_BT) * centred(batch.scores["proximal_logprobs"])
