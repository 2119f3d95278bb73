"""A fixture that evaluates a loss as the gradient step does."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.update_options import aggregation_weights


@pytest.fixture(scope="session")
def evaluate():
    def evaluate(update, logprobs, batch, *, weighted=False, prepared=False):
        """Returns losses and extras on the mask (0 elsewhere), and the slope of the sum of losses.

        `weighted` losses have the weights of the update's aggregation. A `prepared` batch has
        the scores of `prepare` already.
        """
        logprobs_BT = jnp.asarray(logprobs, batch.advantages_BT.dtype)
        return jax.tree.map(np.asarray, compiled(update, logprobs_BT, batch, weighted, prepared))

    return evaluate


@partial(jax.jit, static_argnums=(0, 3, 4))
def compiled(update, logprobs_BT, batch, weighted, prepared):
    mask = batch.loss_mask_BT
    proximal_BT = jnp.where(mask, batch.scores["proximal_logprobs"], 0.0)
    scores = batch.scores | {"proximal_logprobs": proximal_BT}
    batch = dataclasses.replace(batch, scores=scores)
    if hasattr(update, "prepare") and not prepared:
        batch = dataclasses.replace(batch, scores=scores | update.prepare(batch))
    weights_BT = aggregation_weights(mask, update.aggregation, update.aggregation_length)

    def total(logprobs_BT):
        loss_BT, extras = update(jnp.where(mask, logprobs_BT, 0.0), batch)
        assert loss_BT.shape == mask.shape
        assert all(x.shape == mask.shape for x in extras.values())
        weight_BT = weights_BT.astype(loss_BT.dtype) if weighted else 1.0
        loss_BT = jnp.where(mask, weight_BT * loss_BT, 0.0)
        return jnp.sum(loss_BT), (loss_BT, extras)

    slope_BT, (loss_BT, extras) = jax.grad(total, has_aux=True)(logprobs_BT)
    extras = {name: jnp.where(mask, x, jnp.zeros_like(x)) for name, x in extras.items()}
    return loss_BT, extras, slope_BT
