"""The likelihood terms of an update: of right samples, and of what the environment said."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch, Trajectories
from rl4p.protocols.traits import UpdateTraits


def with_likelihood(
    update: UpdateTraits, batch: TrainingBatch, weights_BT: Array
) -> tuple[TrainingBatch, Array]:
    """Adds the likelihood terms of a minibatch, before it is split.

        loss + likelihood_loss mean over tokens of right samples of -log pi        (2504.05118)
             + observation_loss mean over observed tokens of -log pi               (2605.24517)

    ``batch.scores["imitation"]`` is then the factor of -log pi in the loss of a token, and observed
    tokens are scored as those of a response are.

    Args:
      weights_BT: the weight of each token in the loss (`aggregation_weights`).

    Returns:
      The batch, and the weights with those of observed tokens, which are 0 before.
    """
    mask_BT, factor_BT = batch.loss_mask_BT, jnp.zeros(weights_BT.shape, jnp.float32)
    trajectories = batch.trajectories
    if update.likelihood_loss:
        right_BT = mask_BT & (batch.scores["right"].astype(bool)[:, None])
        share = update.likelihood_loss / jnp.maximum(jnp.sum(right_BT, dtype=jnp.float32), 1)
        factor_BT = jnp.where(right_BT, share / jnp.where(right_BT, weights_BT, 1.0), 0.0)
    if update.observation_loss:
        observed_BT = observed(trajectories) & jnp.any(mask_BT, axis=1, keepdims=True)
        share = update.observation_loss / jnp.maximum(jnp.sum(observed_BT, dtype=jnp.float32), 1)
        factor_BT = jnp.where(observed_BT, 1.0, factor_BT)
        weights_BT = jnp.where(observed_BT, share, weights_BT)
        scored_BT = trajectories.response_mask_BT | observed_BT
        trajectories = replace(trajectories, response_mask_BT=scored_BT)
    scores = batch.scores | {"imitation": factor_BT}
    return replace(batch, trajectories=trajectories, scores=scores), weights_BT


def observed(t: Trajectories) -> Array:
    """Returns the tokens that no policy chose after the first response of their segment: [B, T].

    They are what an environment said, with the markers of messages around it.
    """
    columns = jnp.arange(t.tokens_BT.shape[1])
    before_BT = jnp.pad(t.segment_ids_BT[:, :-1], ((0, 0), (1, 0)))
    begins_BT = jnp.where(t.segment_ids_BT != before_BT, columns, 0)
    chosen_BT = jnp.where(t.response_mask_BT, columns, -1)
    begin_BT, last_BT = (jax.lax.cummax(x, axis=1) for x in (begins_BT, chosen_BT))
    return (t.segment_ids_BT != 0) & ~t.response_mask_BT & (last_BT >= begin_BT)
