"""One step of the loop's worth of optimizer updates: epochs x minibatches x microbatches.

Everything that normalises is computed over the whole minibatch before it is split, so a gradient
does not depend on how many microbatches it was summed from.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rl4p.masking import masked_sum
from rl4p.model.decoder import Decoder
from rl4p.model.logprobs import microbatch_count, split_rows, token_logprobs
from rl4p.model.lora import join
from rl4p.types import Array, Metrics, Params, Sampling, TrainingBatch, TrainState
from rl4p.update.aggregation import aggregation_weights


@partial(
    jax.jit, static_argnames=("update", "decoder", "sampling", "optimizer"), donate_argnames="state"
)
def gradient_step(
    update: Any,
    decoder: Decoder,
    sampling: Sampling,
    optimizer: Any,
    frozen: Params,
    state: TrainState,
    batch: TrainingBatch,
) -> tuple[TrainState, Metrics]:
    """Runs `update.epochs` passes of `update.minibatches` optimizer updates over the batch.

    Args:
      update: the update phase (`protocols.Update`).
      decoder, sampling: the policy, and the distribution that its tokens were drawn from.
      optimizer: `protocols.Optimizer`.
      frozen: parameters that those of the state stand beside (`Policy.frozen`).
      state: given up to the call (donated).
      batch: rows are whole sequences; their number must divide by the minibatches.

    Returns:
      The state after the updates (its step is not advanced: the loop does that) and metrics under
      `update/` and `rollout/logprob_gap_*`.
    """
    rows = batch.loss_mask_BT.shape[0]
    key = jax.random.fold_in(state.step_key(), 1)

    def pass_order(epoch: Array) -> Array:
        if update.minibatches == 1:
            return jnp.arange(rows)[None]
        order = jax.random.permutation(jax.random.fold_in(key, epoch), rows)
        return order.reshape(update.minibatches, -1)

    order = jax.vmap(pass_order)(jnp.arange(update.epochs))
    order = order.reshape(update.epochs * update.minibatches, -1)
    learning_rate = optimizer.learning_rate_at(state.step)

    def one_update(carry: tuple[Params, Any], row_ids: Array) -> tuple[tuple[Params, Any], Any]:
        params, optimizer_state = carry
        minibatch = jax.tree.map(lambda x: x[row_ids], batch)
        gradient, sums = minibatch_gradient(update, decoder, sampling, frozen, params, minibatch)
        norm = optax.tree.norm(gradient)
        direction, new_optimizer_state = optimizer.transform().update(
            gradient, optimizer_state, params
        )
        new_params = optax.apply_updates(
            params, jax.tree.map(lambda d: learning_rate * d, direction)
        )
        # A gradient that is not finite changes nothing; the loop counts it and gives up in time.
        finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"])
        carry = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (new_params, new_optimizer_state),
            (params, optimizer_state),
        )
        return carry, sums | {"grad_norm": norm, "skipped": jnp.where(finite, 0.0, 1.0)}

    (params, optimizer_state), sums = jax.lax.scan(
        one_update, (state.params, state.optimizer_state), order
    )
    state = replace(state, params=params, optimizer_state=optimizer_state)
    return state, summarise(sums) | {"update/learning_rate": learning_rate}


def minibatch_gradient(
    update: Any,
    decoder: Decoder,
    sampling: Sampling,
    frozen: Params,
    params: Params,
    batch: TrainingBatch,
) -> tuple[Params, dict[str, Array]]:
    """The gradient of the aggregated loss, summed over microbatches, and sums for the metrics."""
    rows, T = batch.loss_mask_BT.shape
    weights_BT = aggregation_weights(
        batch.loss_mask_BT, update.aggregation, update.aggregation_length
    )
    microbatches = microbatch_count(rows, T, update.tokens_per_microbatch)

    def loss_and_sums(params: Params, micro: TrainingBatch, weights_BT: Array) -> Any:
        whole = join(frozen, params)
        logprobs_BT, entropy_BT = token_logprobs(decoder, whole, micro.trajectories, sampling)
        # Padding may hold -inf (a token outside the support): out before any arithmetic.
        mask = micro.loss_mask_BT
        logprobs_BT = jnp.where(mask, logprobs_BT, 0.0)
        proximal_BT = micro.scores.get("proximal_logprobs", jax.lax.stop_gradient(logprobs_BT))
        proximal_BT = jnp.where(mask, proximal_BT, 0.0)
        micro = replace(micro, scores=micro.scores | {"proximal_logprobs": proximal_BT})
        loss_BT, extras = update(logprobs_BT, micro)
        loss = jnp.sum(jnp.where(mask, weights_BT * loss_BT, 0.0))
        log_ratio_BT = jax.lax.stop_gradient(logprobs_BT) - proximal_BT
        gap_BT = jnp.where(
            mask & (micro.trajectories.policy_version_B[:, None] >= 0),
            jnp.abs(proximal_BT - micro.trajectories.behaviour_logprobs_BT),
            0.0,
        )
        per_token = {
            "entropy": entropy_BT,
            "approx_kl": jnp.expm1(jnp.clip(log_ratio_BT, -20.0, 20.0)) - log_ratio_BT,
            "logprob_gap": gap_BT,
        } | extras
        sums = {name: masked_sum(x.astype(jnp.float32), mask) for name, x in per_token.items()}
        sums |= {"loss": loss, "tokens": jnp.sum(mask, dtype=jnp.float32)}
        return loss, jax.lax.stop_gradient((sums, jnp.max(gap_BT)))

    def accumulate(carry: Any, micro: Any) -> tuple[Any, None]:
        gradient, sums, gap_max = carry
        (_, (new_sums, new_max)), new_gradient = jax.value_and_grad(loss_and_sums, has_aux=True)(
            params, *micro
        )
        add = partial(jax.tree.map, jnp.add)
        return (
            add(gradient, new_gradient),
            add(sums, new_sums),
            jnp.maximum(gap_max, new_max),
        ), None

    parts = split_rows((batch, weights_BT), microbatches)  # rows of padding have no weight
    shapes = jax.eval_shape(loss_and_sums, params, *jax.tree.map(lambda x: x[0], parts))[1]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    start = (jax.tree.map(jnp.zeros_like, params), *zeros)
    (gradient, sums, gap_max), _ = jax.lax.scan(accumulate, start, parts)
    return gradient, sums | {"logprob_gap_max": gap_max}


def summarise(sums: dict[str, Array]) -> Metrics:
    """Sums of each update, stacked over updates, to one metric each: sums over counts."""
    tokens = jnp.maximum(jnp.sum(sums["tokens"]), 1)
    once: Metrics = {
        "update/loss": jnp.mean(sums["loss"]),
        "update/grad_norm": jnp.mean(sums["grad_norm"]),
        "update/skipped": jnp.sum(sums["skipped"]),
        "rollout/logprob_gap_max": jnp.max(sums["logprob_gap_max"]),
        "rollout/logprob_gap_mean": jnp.sum(sums["logprob_gap"]) / tokens,
    }
    special = {"loss", "grad_norm", "skipped", "tokens", "logprob_gap", "logprob_gap_max"}
    return once | {
        f"update/{name}": jnp.sum(x) / tokens for name, x in sums.items() if name not in special
    }
