"""The optimizer updates of one step of the loop: epochs x minibatches x microbatches.

`gradient_step` runs all of them in one program. An update is `forward_backward`, which returns the
gradient of a minibatch, and `optimizer_step`, which applies it; both can also be called alone. They
refuse a state whose buffers were donated (`Compiled`).

All normalisation is computed over the whole minibatch before it is split, so a gradient does not
depend on the number of microbatches.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from rl4p.base.errors import RunError
from rl4p.base.types import Array, Metrics, Params, TrainingBatch, TrainState, Trajectories
from rl4p.distributed import collectives, placement
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import is_constant, is_correction
from rl4p.distributed.placement import as_before, on_device
from rl4p.distributed.processes import to_host
from rl4p.learner.device_gradient import device_gradient
from rl4p.learner.microbatches import spread
from rl4p.learner.objective import Objective, with_likelihood
from rl4p.learner.packing import packed
from rl4p.learner.shared_prompts import pays
from rl4p.learner.update_options import aggregation_weights
from rl4p.model.pattern import load_order
from rl4p.model.router import balanced
from rl4p.protocols.phases import Optimizer, Prepares
from rl4p.protocols.traits import UpdateTraits

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A compiled function, which checks its arguments before a buffer is donated.

    It waits for the arguments: if the computation of one fails, the state keeps its buffers. Within
    another compiled function it is the plain function, because its arguments have no values there.

    Attributes:
      check: another check of the arguments; None for no other.
    """

    def __init__(
        self, function: Callable[P, R], check: Callable[P, None] | None, **options: Any
    ) -> None:
        self.function = function
        self.check = check
        self.program = jax.jit(function, **options)
        self.trace, self.lower = self.program.trace, self.program.lower
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        values = (*args, *kwargs.values())
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values)):
            return self.function(*args, **kwargs)
        for value in values:
            if isinstance(value, TrainState):
                value.check_not_donated()
        jax.block_until_ready(values)
        if self.check is not None:
            self.check(*args, **kwargs)
        return self.program(*args, **kwargs)


def compiled(
    *static: str, donates: bool = False, check: Callable[P, None] | None = None
) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Returns a decorator that compiles a function of a `TrainState` (`Compiled`).

    Args:
      static: the names of the static arguments.
      donates: whether the buffers of the argument `state` are donated.
    """

    def decorate(function: Callable[P, R]) -> Compiled[P, R]:
        donated = ("state",) if donates else ()
        return Compiled(function, check, static_argnames=static, donate_argnames=donated)

    return decorate


class Gradient(NamedTuple):
    """The gradient of a loss.

    Attributes:
      params: the gradient of each trained parameter.
      sums: sums over the loss tokens by name, of which `summarise` makes metrics.
      version: the weight version of the parameters, which is the `step` of their state.
    """

    params: Params
    sums: dict[str, Array]
    version: Array


@compiled("objective", "optimizer", donates=True)
def gradient_step(
    objective: Objective,
    optimizer: Optimizer,
    frozen: Params,
    state: TrainState,
    batch: TrainingBatch,
    coefficients: dict[str, Array],
) -> tuple[TrainState, Metrics]:
    """Runs `update.epochs` passes of `update.minibatches` optimizer updates over the batch.

    Each device forms its own microbatches, and gradients are summed over the devices once per
    update.

    Args:
      frozen: the parameters that are not trained (`Phases.frozen`).
      state: the state before the step; its buffers are donated.
      batch: one whole sequence per row; the minibatches must divide the number of rows.
      coefficients: the coefficients of `kl` and `entropy` in this step.

    Returns:
      The state after the updates, and metrics under `update/` and `rollout/`. The state has the
      same `step` as before: the loop advances it.

    Raises:
      RunError: the buffers of the state were donated.
    """

    def one_update(state: TrainState, row_ids: Array) -> tuple[TrainState, dict[str, Array]]:
        minibatch = minibatch_of(batch, row_ids)
        return both_halves(objective, optimizer, frozen, state, minibatch, coefficients)

    row_ids = minibatches(objective, state, batch)
    trained, sums = jax.lax.scan(one_update, replace(state, average={}), row_ids)
    learning_rate = optimizer.learning_rate_at(state.step)
    metrics = summarise(sums) | {"update/learning_rate": learning_rate}
    return replace(trained, average=state.average), metrics


def gradient_step_in_halves(
    objective: Objective,
    optimizer: Optimizer,
    frozen: Params,
    state: TrainState,
    batch: TrainingBatch,
    coefficients: dict[str, Array],
) -> tuple[TrainState, Metrics]:
    """Runs the updates of `gradient_step`, with a program for each half of an update.

    The state of the optimizer, in the memory of the host, is copied to the devices for the second
    half only, when they hold nothing but the parameters and their gradient. (Compilers would copy
    it at the start of a program that has both halves.)
    """
    row_ids = to_host(jax.jit(minibatches, static_argnames="objective")(objective, state, batch))
    choose, parts = jax.jit(minibatch_of, out_shardings=objective.mesh.rows), []
    for each in row_ids:
        minibatch = choose(batch, each)
        state, sums = both_halves(objective, optimizer, frozen, state, minibatch, coefficients)
        parts.append(sums)
    metrics = summarise(jax.tree.map(lambda *x: jnp.stack(x), *parts))
    return state, metrics | {"update/learning_rate": optimizer.learning_rate_at(state.step)}


def both_halves(
    objective: Objective,
    optimizer: Optimizer,
    frozen: Params,
    state: TrainState,
    minibatch: TrainingBatch,
    coefficients: dict[str, Array],
) -> tuple[TrainState, dict[str, Array]]:
    """Runs one update, and returns the new state and its sums; the gradient is freed then."""
    gradient = forward_backward(objective, frozen, state, minibatch, coefficients)
    return optimizer_step(optimizer, objective.mesh, state, gradient)


def minibatches(objective: Objective, state: TrainState, batch: TrainingBatch) -> Array:
    """Returns the row numbers of each minibatch, in the order of the updates: [updates, rows].

    With several minibatches, each epoch shuffles the blocks of rows that stay together.
    """
    update, together = objective.update, rows_together(objective, batch.trajectories)
    key = jax.random.fold_in(state.step_key(), 1)
    rows = jnp.arange(batch.loss_mask_BT.shape[0])
    if together > 1:  # blocks are formed by group id, not by position
        rows = jnp.argsort(batch.trajectories.group_ids_B, stable=True)
    blocks = rows.reshape(-1, together)

    def shuffled(epoch: Array) -> Array:
        if update.minibatches == 1:
            return blocks.reshape(1, -1)
        order = jax.random.permutation(jax.random.fold_in(key, epoch), blocks)
        return order.reshape(update.minibatches, -1)

    order = jax.vmap(shuffled)(jnp.arange(update.epochs))
    return order.reshape(update.epochs * update.minibatches, -1)


def minibatch_of(batch: TrainingBatch, row_ids: Array) -> TrainingBatch:
    return jax.tree.map(lambda x: x[row_ids], batch)


@compiled("objective")
def forward_backward(
    objective: Objective,
    frozen: Params,
    state: TrainState,
    batch: TrainingBatch,
    coefficients: dict[str, Array],
) -> Gradient:
    """Returns the gradient of the aggregated loss of a minibatch, over all its microbatches.

    The state keeps its buffers. The arguments are those of `gradient_step`.

    Raises:
      RunError: the buffers of the state were donated.
    """
    update, mesh = objective.update, objective.mesh
    coefficients = coefficients | {"step": state.step}
    shared = shares_prompts(objective, batch.trajectories)
    together = rows_together(objective, batch.trajectories)
    weights_BT = aggregation_weights(
        batch.loss_mask_BT, update.aggregation, update.aggregation_length
    )
    rows = add_minibatch_scores(objective, batch), weights_BT
    traits = UpdateTraits.read(update)
    if traits.likelihood_loss or traits.observation_loss:
        rows = with_likelihood(traits, *rows)
    segments_BT = batch.trajectories.segment_ids_BT
    if traits.pack:
        rows, segments_BT = packed(rows, segments_BT)
        packed_trajectories = replace(rows[0].trajectories, segment_ids_BT=segments_BT)
        rows = replace(rows[0], trajectories=packed_trajectories), rows[1]
    gradient, sums, gap_max = spread(
        partial(device_gradient, objective, shared),
        (state.params, frozen, coefficients),
        rows,  # rows that pad a device or a microbatch have weight 0
        segments_BT,
        mesh,
        together=together,
        results=(collectives.parts(mesh, state.params), *[collectives.REPLICATED] * 2),
    )
    sums |= {"logprob_gap_max": gap_max}
    if rate := objective.router_bias_rate:
        chosen_ME = sums.pop("chosen_ME")[load_order(objective.decoder.config)]
        sums |= balanced(chosen_ME, rate)._asdict()
    return Gradient(gradient, sums, state.step)


def check_version(optimizer: Optimizer, mesh: Mesh, state: TrainState, gradient: Gradient) -> None:
    """Refuses a gradient of other weights than the state's."""
    if int(gradient.version) != int(state.step):
        raise RunError(
            f"The gradient was computed with the weights of step {int(gradient.version)}, but the "
            f"state is at step {int(state.step)}: call forward_backward with this state."
        )


@compiled("optimizer", "mesh", donates=True, check=check_version)
def optimizer_step(
    optimizer: Optimizer, mesh: Mesh, state: TrainState, gradient: Gradient
) -> tuple[TrainState, dict[str, Array]]:
    """Applies a gradient to the parameters of a state, whose buffers are donated.

    A gradient that is not finite changes nothing. The loop stops after too many of them. A state of
    the optimizer in the memory of the host comes to the devices, and goes back.

    Returns:
      The new state, with the same `step` (the weight version, which the caller advances), and the
      sums of the gradient, to which `grad_norm` and `skipped` are added.

    Raises:
      RunError: the buffers of the state were donated, or the gradient has another weight version.
    """
    moments = on_device(state.optimizer_state)
    norm = optax.tree.norm(gradient.params)
    finite = jnp.isfinite(norm) & jnp.isfinite(gradient.sums["loss"])

    def constant(path: tuple, new: Array, old: Array) -> Array:
        if is_correction(path) and "bias_step_ME" in gradient.sums:
            return old + gradient.sums["bias_step_ME"][:, None]
        return old if is_constant(path, old) else new

    # A conditional, and no choice of values behind the change: a compiler would copy the moments at
    # the start of the program, and keep the copies beside the activations.
    def changed() -> tuple[Params, Any]:
        direction, optimizer_state = optimizer.transform().update(
            gradient.params, moments, state.params
        )
        rate = optimizer.learning_rate_at(state.step)
        params = optax.apply_updates(state.params, jax.tree.map(lambda d: rate * d, direction))
        params = jax.tree.map_with_path(constant, params, state.params)
        return placement.constrain(mesh, params, optimizer_state)

    params, optimizer_state = jax.lax.cond(finite, changed, lambda: (state.params, moments))
    sums = gradient.sums | {"grad_norm": norm, "skipped": jnp.where(finite, 0.0, 1.0)}
    optimizer_state = as_before(optimizer_state, state.optimizer_state)
    return replace(state, params=params, optimizer_state=optimizer_state), sums


def shares_prompts(objective: Objective, trajectories: Trajectories) -> bool:
    """Returns whether the rows of a group share the computation of their prompt.

    They do not if there are several minibatches, which may divide a group, if sequences are packed,
    if a separate critic or a teacher runs the rows itself, or if it matters how routers load their
    experts.
    """
    divides = objective.update.minibatches > 1 or UpdateTraits.read(objective.update).pack
    whole = objective.critic.own_trunk or objective.teacher is not None
    if divides or whole or objective.counts_load:
        return False
    return pays(objective.decoder, trajectories, objective.mesh)


def rows_together(objective: Objective, trajectories: Trajectories) -> int:
    """Returns how many rows of one group stay on one device and in one minibatch."""
    if shares_prompts(objective, trajectories):
        return trajectories.group_size
    return objective.rows_together


def add_minibatch_scores(objective: Objective, batch: TrainingBatch) -> TrainingBatch:
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
        *("returns", "squared_returns", "squared_value_errors", "router_loss"),
        *("bias_step_ME", "load_excess", "imitation_loss"),
    }
    if "imitation_loss" in sums:
        special["update/imitation_loss"] = jnp.mean(sums["imitation_loss"])
    if "router_loss" in sums:
        special["update/router_loss"] = jnp.mean(sums["router_loss"])
    if "load_excess" in sums:
        special["update/load_excess"] = jnp.mean(sums["load_excess"])
    if "returns" in sums:
        variance = total["squared_returns"] - jnp.square(total["returns"]) / tokens
        unexplained = total["squared_value_errors"] / jnp.maximum(variance, 1e-9)
        special["update/explained_variance"] = 1 - unexplained
    return special | {f"update/{name}": x / tokens for name, x in total.items() if name not in used}
