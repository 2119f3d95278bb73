"""The optimizer updates of one step of the loop: epochs x minibatches x microbatches.

All normalisation is computed over the whole minibatch before it is split, so a gradient does not
depend on the number of microbatches.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rl4p.distributed import collectives, placement
from rl4p.distributed.mesh import ONE_DEVICE, Mesh
from rl4p.distributed.partition import gather
from rl4p.learner.aggregation import aggregation_weights
from rl4p.learner.masking import masked_sum
from rl4p.learner.microbatches import Rows, fold, spread
from rl4p.learner.objective import Objective
from rl4p.learner.packing import packed
from rl4p.learner.shared_prompts import KeysAndValues, SharedPrompts, add_groups, pays, take_groups
from rl4p.learner.token_loss import token_loss
from rl4p.model.decoder import Decoder, Prefix
from rl4p.model.lora import merge_trees
from rl4p.protocols.phases import Prepares
from rl4p.types import Array, Metrics, Params, Sampling, TrainingBatch, TrainState, Trajectories


@partial(
    jax.jit,
    static_argnames=("objective", "decoder", "sampling", "optimizer", "mesh"),
    donate_argnames="state",
)
def gradient_step(
    objective: Objective,
    decoder: Decoder,
    sampling: Sampling,
    optimizer: Any,
    frozen: Params,
    state: TrainState,
    batch: TrainingBatch,
    coefficients: dict[str, Array],
    mesh: Mesh = ONE_DEVICE,
) -> tuple[TrainState, Metrics]:
    """Runs `update.epochs` passes of `update.minibatches` optimizer updates over the batch.

    Args:
      objective: the policy loss and the terms that are added to it.
      decoder, sampling: the decoder, and the distribution that the tokens were drawn from.
      optimizer: a `protocols.Optimizer`.
      frozen: the parameters that are not trained (`Policy.frozen`).
      state: the state before the step; its buffers are donated.
      batch: one whole sequence per row; the minibatches must divide the number of rows.
      coefficients: the coefficients of `kl` and `entropy` in this step.
      mesh: the mesh whose devices share the rows. Each device forms its own microbatches, and
        gradients are summed over the devices once per update.

    Returns:
      The state after the updates, and metrics under `update/` and `rollout/`. The state has the
      same `step` as before: the loop advances it.
    """
    update, together = objective.update, rows_together(objective, batch.trajectories, mesh)
    key = jax.random.fold_in(state.step_key(), 1)
    # The rows of a block stay in one minibatch. Blocks are formed by group id, not by position.
    rows = jnp.arange(batch.loss_mask_BT.shape[0])
    if together > 1:
        rows = jnp.argsort(batch.trajectories.group_ids_B, stable=True)
    blocks = rows.reshape(-1, together)

    def pass_order(epoch: Array) -> Array:
        if update.minibatches == 1:
            return blocks.reshape(1, -1)
        order = jax.random.permutation(jax.random.fold_in(key, epoch), blocks)
        return order.reshape(update.minibatches, -1)

    order = jax.vmap(pass_order)(jnp.arange(update.epochs))
    order = order.reshape(update.epochs * update.minibatches, -1)
    coefficients = coefficients | {"step": state.step}
    learning_rate = optimizer.learning_rate_at(state.step)

    def one_update(carry: tuple[Params, Any], row_ids: Array) -> tuple[tuple[Params, Any], Any]:
        params, optimizer_state = carry
        minibatch = jax.tree.map(lambda x: x[row_ids], batch)
        gradient, sums = minibatch_gradient(
            objective, decoder, sampling, frozen, params, minibatch, coefficients, mesh
        )
        norm = optax.tree.norm(gradient)
        direction, new_optimizer_state = optimizer.transform().update(
            gradient, optimizer_state, params
        )
        new_params = optax.apply_updates(
            params, jax.tree.map(lambda d: learning_rate * d, direction)
        )
        # A gradient that is not finite changes nothing. The loop stops after too many of them.
        finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"])
        carry = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (new_params, new_optimizer_state),
            (params, optimizer_state),
        )
        carry = placement.constrain(mesh, *carry)
        return carry, sums | {"grad_norm": norm, "skipped": jnp.where(finite, 0.0, 1.0)}

    (params, optimizer_state), sums = jax.lax.scan(
        one_update, (state.params, state.optimizer_state), order
    )
    state = replace(state, params=params, optimizer_state=optimizer_state)
    return state, summarise(sums) | {"update/learning_rate": learning_rate}


def minibatch_gradient(
    objective: Objective,
    decoder: Decoder,
    sampling: Sampling,
    frozen: Params,
    params: Params,
    batch: TrainingBatch,
    coefficients: dict[str, Array],
    mesh: Mesh = ONE_DEVICE,
) -> tuple[Params, dict[str, Array]]:
    """Returns the gradient of the aggregated loss over all microbatches, and sums for metrics."""
    update, trajectories = objective.update, batch.trajectories
    shared_prompts = shares_prompts(objective, trajectories, mesh)
    weights_BT = aggregation_weights(
        batch.loss_mask_BT, update.aggregation, update.aggregation_length
    )
    batch = prepared(objective, batch)
    if getattr(update, "pack", False):
        (batch, weights_BT), segments_BT = packed((batch, weights_BT), trajectories.segment_ids_BT)
        trajectories = replace(batch.trajectories, segment_ids_BT=segments_BT)
        batch = replace(batch, trajectories=trajectories)

    def loss_and_sums(
        params: Params,
        layers: KeysAndValues,
        before: Callable[[KeysAndValues], Prefix | None],
        shared: Any,
        micro: TrainingBatch,
        weights_BT: Array,
    ) -> Any:
        frozen, coefficients = shared
        whole = gather(merge_trees(frozen, params), decoder.dtype)
        loss_BT, per_token = token_loss(
            objective, decoder, sampling, whole, micro, coefficients, before(layers)
        )
        mask = micro.loss_mask_BT
        loss = jnp.sum(jnp.where(mask, weights_BT * loss_BT, 0.0))
        sums = {name: masked_sum(x.astype(jnp.float32), mask) for name, x in per_token.items()}
        sums |= {"loss": loss, "tokens": jnp.sum(mask, dtype=jnp.float32)}
        gap_max = jnp.max(jnp.where(mask, per_token["logprob_gap"], 0.0))
        return loss, jax.lax.stop_gradient((sums, gap_max))

    def of_rows(shared: Any, rows: tuple[TrainingBatch, Array]) -> Any:
        params, *shared = shared

        def whole(params: Params) -> Params:
            return gather(merge_trees(shared[0], params), decoder.dtype)

        prompts = SharedPrompts.of(
            decoder, rows[0].trajectories, update.microbatching, shared=shared_prompts
        )
        rows = prompts.rest(rows)
        found = prompts.keys_and_values(whole(params))

        def arguments(micro: tuple[TrainingBatch, Array], groups_b: Array) -> tuple:
            before = partial(prompts.before, groups_b=groups_b)
            return params, take_groups(found, groups_b), before, shared, *micro

        def accumulate(carry: Any, micro: tuple[TrainingBatch, Array], rows: Rows) -> Any:
            gradient, of_found, sums, gap_max = carry
            groups_b = prompts.groups(rows)
            of_micro = jax.value_and_grad(loss_and_sums, argnums=(0, 1), has_aux=True)
            (_, (new_sums, new_max)), new = of_micro(*arguments(micro, groups_b))
            add = partial(jax.tree.map, jnp.add)
            gradient, of_found = add(gradient, new[0]), add_groups(of_found, groups_b, new[1])
            return gradient, of_found, add(sums, new_sums), jnp.maximum(gap_max, new_max)

        all_groups_B = jnp.arange(rows[1].shape[0]) // prompts.group_size
        shapes = jax.eval_shape(lambda: loss_and_sums(*arguments(rows, all_groups_B))[1])
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        nothing = (
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), found),
        )
        gradient, of_found, sums, gap_max = fold(
            accumulate,
            (*nothing, *zeros),
            rows,
            rows[0].trajectories.segment_ids_BT,
            update.microbatching,
            together=objective.rows_together,
        )
        gradient = prompts.add_gradient(gradient, whole, params, of_found)
        sums, gap_max = collectives.total(mesh, sums), collectives.largest(mesh, gap_max)
        return collectives.total_gradient(mesh, gradient), sums, gap_max

    gradient, sums, gap_max = spread(
        of_rows,
        (params, frozen, coefficients),
        (batch, weights_BT),  # rows that pad a device or a microbatch have weight 0
        trajectories.segment_ids_BT,
        mesh,
        together=rows_together(objective, trajectories, mesh),
        results=(collectives.parts(params), collectives.REPLICATED, collectives.REPLICATED),
    )
    return gradient, sums | {"logprob_gap_max": gap_max}


def shares_prompts(objective: Objective, trajectories: Trajectories, mesh: Mesh) -> bool:
    """Returns whether the rows of a group share the computation of their prompt.

    They do not if there are several minibatches, which may divide a group, if sequences are packed,
    or if a separate critic runs the rows itself.
    """
    divides = objective.update.minibatches > 1 or getattr(objective.update, "pack", False)
    return not divides and not objective.critic.own_trunk and pays(trajectories, mesh)


def rows_together(objective: Objective, trajectories: Trajectories, mesh: Mesh) -> int:
    """Returns how many rows of one group stay on one device and in one minibatch."""
    if shares_prompts(objective, trajectories, mesh):
        return trajectories.group_size
    return objective.rows_together


def prepared(objective: Objective, batch: TrainingBatch) -> TrainingBatch:
    """Adds the scores that depend on all rows of the minibatch, before the minibatch is split."""
    scores = dict(batch.scores)
    if isinstance(objective.update, Prepares):
        scores |= objective.update.prepare(batch)
    if objective.entropy.selects:
        scores["selected"] = objective.entropy.select(scores["entropy"], batch.loss_mask_BT)
    return replace(batch, scores=scores)


def summarise(sums: dict[str, Array]) -> Metrics:
    """Returns one metric per name from sums that are stacked over updates: sums over counts."""
    tokens = jnp.maximum(jnp.sum(sums["tokens"]), 1)
    total = {name: jnp.sum(x) for name, x in sums.items()}
    effective = jnp.square(total["weight"]) / jnp.maximum(total["squared_weight"], 1e-9)
    special: Metrics = {
        "update/loss": jnp.mean(sums["loss"]),
        "update/grad_norm": jnp.mean(sums["grad_norm"]),
        "update/skipped": total["skipped"],
        "update/ess": effective / tokens,  # 1 where sampler and trainer agree
        "rollout/logprob_gap_max": jnp.max(sums["logprob_gap_max"]),
        "rollout/logprob_gap_mean": total["logprob_gap"] / jnp.maximum(total["fresh"], 1),
        "rollout/fresh": total["fresh"] / tokens,
        "rollout/mismatch_kl": total["mismatch_kl"] / tokens,
    }
    used = {
        *("loss", "grad_norm", "skipped", "tokens", "weight", "squared_weight"),
        *("logprob_gap", "logprob_gap_max", "fresh", "mismatch_kl"),
        *("returns", "squared_returns", "squared_value_errors"),
    }
    if "returns" in sums:
        variance = total["squared_returns"] - jnp.square(total["returns"]) / tokens
        unexplained = total["squared_value_errors"] / jnp.maximum(variance, 1e-9)
        special["update/explained_variance"] = 1 - unexplained
    return special | {f"update/{name}": x / tokens for name, x in total.items() if name not in used}
