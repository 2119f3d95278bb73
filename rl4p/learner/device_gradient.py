"""The gradient of the rows of one device, over its microbatches.

0. With a loss of the routers, all rows run forward once, which counts the choices of experts.
1. The prompts of groups run forward once: keys and values [L, P, ...] of P groups.
2. Each microbatch of b rows runs behind them, forward and backward. This gives a gradient of the
   parameters, and one of the keys and values, which is added up by group.
3. The prompts run backward once, with the gradient of their keys and values.
4. The devices add up their gradients. Until then they exchange parameters only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Params, TrainingBatch, Trajectories
from rl4p.distributed import collectives
from rl4p.distributed.partition import gather
from rl4p.learner.logprobs import ForwardRows, trunk_and_load
from rl4p.learner.masking import masked_sum
from rl4p.learner.microbatches import MicrobatchRows, add_gradient, fold
from rl4p.learner.objective import Objective, token_loss
from rl4p.learner.packing import Packing
from rl4p.learner.shared_prompts import Caches, SharedPrompts, add_groups, take_groups
from rl4p.model.lora import merge_trees
from rl4p.model.router import RouterLoad, balance_loss
from rl4p.protocols.traits import UpdateTraits


class Totals(NamedTuple):
    """The totals over the microbatches of a device.

    Attributes:
      gradient: the gradient of the trained parameters.
      prefix_gradient: the gradient of the keys and values of the shared prompts.
      sums: the sums of the metrics over the loss tokens, by name.
      gap_max: the largest `logprob_gap`.
    """

    gradient: Params
    prefix_gradient: Caches
    sums: dict[str, Array]
    gap_max: Array


def device_gradient(
    objective: Objective,
    shared: bool,
    replicated: tuple[Params, Params, dict[str, Array]],
    rows: tuple[TrainingBatch, Array],
) -> tuple[Params, dict[str, Array], Array]:
    """Returns the gradient, the sums of the metrics and the largest gap, over all devices.

    Args:
      shared: whether the rows of a group share the computation of their prompt.
      replicated: the trained parameters, the frozen ones and the coefficients.
      rows: the rows of this device, and the weight of each token in the loss.
    """
    params, frozen, coefficients = replicated
    decoder, microbatching = objective.decoder, objective.update.microbatching

    # `params` are what is differentiated: this device's shards, in their own dtype. The decoder
    # takes merged and gathered parameters in its dtype. Each differentiated function must merge by
    # itself, because the backward pass of `gather` sums the gradient into the shards. A teacher has
    # a dtype of its own.
    base = {name: x for name, x in frozen.items() if name != "teacher"}

    def merge(params: Params) -> Params:
        merged = gather(merge_trees(base, params), decoder.dtype)
        if objective.teacher is None:
            return merged
        return merged | {"teacher": gather(frozen["teacher"], objective.teacher.dtype)}

    # 1. The prompts: [P, S]. From here on, a row begins with the last token of its prompt, which
    # predicts the first one of the response. Nothing is shared if `prompts` has no columns.
    prompts = SharedPrompts.of(decoder, rows[0].trajectories, microbatching, shared=shared)
    rows = collectives.padded(prompts.rest(rows))
    prefixes = prompts.caches(merge(params))

    # There are two sets of rows now. `rows` are what the loss reads, one for each sequence.
    # `trajectories` are what the trunk runs: the same, or packed, with several sequences in a row.
    # A critic reads the trunk's rows as if they were the loss's, so it prevents packing.
    trajectories, packing = rows[0].trajectories, None
    if objective.rows_together == 1 and not objective.critic.active:
        packing = prompts.packing(trajectories.segment_ids_BT)
    if packing is not None:
        trajectories = packing.pack_trajectories(trajectories)

    # 2. The microbatches, of b rows of the trunk.
    load = None
    if objective.router_loss:
        load = router_load(objective, merge(params), trajectories)
    loss = partial(microbatch_loss, objective, prompts, merge, coefficients, load)
    in_place = adds_in_place(objective, frozen)

    def add(totals: Totals, forward: Trajectories, at: MicrobatchRows) -> Totals:
        # `at` counts the rows of the trunk, and `own` the sequences in them: the same if no rows
        # are packed, else [places], of which an empty one is outside the batch and has weight 0.
        groups_b, width = at.rows_b // prompts.group_size, forward.tokens_BT.shape[1]
        own, places = at, None
        if packing is not None:
            own, places = packing.of_microbatch(at, prompts.group_size)
        micro = jax.tree.map(lambda x: own.take(x, width), rows)
        # The keys and values are an argument of their own, so that they get a gradient: of all
        # rows of a group it is added up here, and goes back through the prompt once, in step 3.
        prefix = take_groups(prefixes, groups_b)

        def of_rows(params: Params, prefix: Caches) -> Any:
            return loss(params, prefix, groups_b, micro, forward, places)

        _, back, (sums, gap_max) = jax.vjp(of_rows, params, prefix, has_aux=True)
        gradient, prefix_gradient = add_gradient(
            back, jnp.float32(1), totals.gradient, prefix, in_place=in_place
        )
        return Totals(
            gradient=gradient,
            prefix_gradient=add_groups(totals.prefix_gradient, groups_b, prefix_gradient),
            sums=jax.tree.map(jnp.add, totals.sums, sums),
            gap_max=jnp.maximum(totals.gap_max, gap_max),
        )

    # The names of the metrics depend on the update, so the sums take their shapes from a loss that
    # is traced, and never run, for all rows at once.
    groups_B = jnp.arange(rows[1].shape[0]) // prompts.group_size
    shapes = jax.eval_shape(
        lambda: loss(params, take_groups(prefixes, groups_B), groups_B, rows, rows[0].trajectories)
    )
    totals: Totals = fold(
        add,
        no_totals(params, prefixes, *shapes[1]),
        trajectories,
        trajectories.segment_ids_BT,
        microbatching,
        together=objective.rows_together,
        packed=packing is not None or UpdateTraits.read(objective.update).pack,
    )

    # 3. The prompts again, and 4. the other devices. `gather` has already summed the gradient of a
    # shard over the devices that gathered it; `total_gradient` sums over the others only.
    gradient = prompts.add_gradient(
        totals.gradient, merge, params, totals.prefix_gradient, in_place=in_place
    )
    mesh = objective.mesh
    sums, gap_max = collectives.total(mesh, totals.sums), collectives.largest(mesh, totals.gap_max)
    return collectives.total_gradient(mesh, gradient), sums, gap_max


def adds_in_place(objective: Objective, frozen: Params) -> bool:
    """Returns whether the scan over the layers takes all its parameters as they are.

    It does if all layers have one structure and all parameters are trained. Without a scan, the
    compiler copies the whole stack before each layer is added to it: so not if it is unrolled.
    """
    decoder = objective.decoder
    structures = {kind.structure for kind in decoder.config.kinds}
    every = len(structures) == 1 and not frozen and not objective.critic.own_trunk
    return every and not decoder.unroll


def router_load(objective: Objective, params: Params, trajectories: Trajectories) -> RouterLoad:
    """Returns what the routers do with the rows of all devices, without a gradient."""
    decoder, update = objective.decoder, objective.update

    def of(trajectories: Trajectories) -> RouterLoad:
        return trunk_and_load(decoder, params, trajectories)[1]

    def add(load: RouterLoad, micro: Trajectories, _: MicrobatchRows) -> RouterLoad:
        return jax.tree.map(jnp.add, load, of(micro))

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(of, trajectories))
    own = fold(
        add,
        zeros,
        trajectories,
        trajectories.segment_ids_BT,
        update.microbatching,
        together=objective.rows_together,
        packed=UpdateTraits.read(update).pack,
    )
    return collectives.total(objective.mesh, collectives.total_of_columns(own))


def no_totals(params: Params, prefixes: Caches, sums: Any, gap_max: Any) -> Totals:
    """Returns totals of 0; the sums and the gap have the shapes of the given ones."""
    sums, gap_max = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (sums, gap_max))
    return Totals(
        gradient=jax.tree.map(jnp.zeros_like, params),
        # In float32: a group adds up the gradients of all its rows, which bfloat16 would round.
        prefix_gradient=jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), prefixes),
        sums=sums,
        gap_max=gap_max,
    )


def microbatch_loss(
    objective: Objective,
    prompts: SharedPrompts,
    merge: Callable[[Params], Params],
    coefficients: dict[str, Array],
    of_batch: RouterLoad | None,
    params: Params,
    prefix: Caches,
    groups_b: Array,
    micro: tuple[TrainingBatch, Array],
    forward: Trajectories,
    places: Packing | None = None,
) -> tuple[Array, tuple[dict[str, Array], Array]]:
    """Returns the weighted loss of a microbatch, and the sums and the largest gap for metrics.

    The weights of the tokens were computed over the whole minibatch, so the losses of microbatches
    only have to be added up.

    Args:
      of_batch: what the routers do with all rows, if their loss counts.
      params, prefix: what is differentiated: the trained parameters, and the keys and values of the
        prompts of the rows' groups.
      micro: the rows that the loss reads, one for each sequence, and the weights of their tokens.
      forward, places: the rows that the trunk runs, and the places of the sequences in them; None
        if each has a row of its own.
    """
    batch, weights_BT = micro
    before = prompts.before(prefix, groups_b, packed=places is not None)
    rows = ForwardRows(forward, before, places)
    loss_BT, per_token, load = token_loss(objective, merge(params), batch, coefficients, rows)
    mask_BT = batch.loss_mask_BT
    # The weights are 0 where there is no loss.
    loss = jnp.sum(jnp.where(weights_BT > 0, weights_BT * loss_BT, 0.0))
    sums = {name: masked_sum(x.astype(jnp.float32), mask_BT) for name, x in per_token.items()}
    if "imitation_loss" in per_token:  # also of tokens outside the mask
        sums["imitation_loss"] = jnp.sum(weights_BT * per_token["imitation_loss"])
    sums |= {"loss": loss, "tokens": jnp.sum(mask_BT, dtype=jnp.float32)}
    if load is not None and of_batch is not None:
        own = balance_loss(load, of_batch)
        loss = loss + objective.router_loss * own
        of_columns = collectives.total_of_columns(jax.lax.stop_gradient(own))
        sums["loss"] += objective.router_loss * of_columns
        sums["router_loss"] = of_columns
    if load is not None and objective.router_bias_rate:
        sums["chosen_ME"] = collectives.total_of_columns(load.chosen_ME)
    gap_max = jnp.max(jnp.where(mask_BT, per_token["logprob_gap"], 0.0))
    return loss, jax.lax.stop_gradient((sums, gap_max))
