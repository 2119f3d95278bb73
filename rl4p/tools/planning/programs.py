"""The compiled functions of a step, in order, each with the arrays on the devices meanwhile.

The functions are the ones that the loop calls, traced with shapes in place of arrays. Arguments
that are results of another program have the shardings that this program gives them.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from rl4p.base.terminal import write
from rl4p.distributed.partition import for_decoding
from rl4p.distributed.placement import with_shardings
from rl4p.learner.gradient_step import forward_backward, gradient_step, optimizer_step
from rl4p.learner.logprobs import score_tokens
from rl4p.learner.microbatches import max_iterations
from rl4p.loop.scoring import OF_POLICY
from rl4p.model.experts import devices_of_experts
from rl4p.model.pattern import places
from rl4p.protocols.traits import (
    KeepsCaches,
    OptimizerTraits,
    Planned,
    RewardTraits,
    RolloutTraits,
    TermTraits,
)
from rl4p.runs.compatibility import choice
from rl4p.tools.planning.abstract import AbstractRun, bytes_of_chip


@dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled function of a run."""

    phase: str  # the name of the function in the plan
    traced: Any  # the function, traced by JAX
    compiled: Any  # the compiled function; None if the compiler found that it cannot fit
    live: int  # the bytes of all arrays on a device while it runs, its arguments included
    # The bytes for which the compiler found no room: arguments, outputs and temporaries.
    refused: int = 0
    arguments: int = 0  # the bytes of the arguments on a device, if it found none
    iterations: int = 1  # the number of iterations of a loop whose trip count is not static
    times: int = 1  # how often the program runs in a step
    # The least bytes that each device reads; None if it reads every argument once.
    read: float | None = None
    seconds: float = 0.0  # the compilation time
    sampled: bool = False  # whether it runs on the sampling mesh


def program(phase: str, traced: Any, live: Any, **options: Any) -> Program:
    """Compiles a traced function."""
    started = time.perf_counter()
    compiled, refused, arguments = None, 0, 0
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        refused = bytes_refused(str(error))
        if not refused:
            raise
        arguments = bytes_of_arguments(traced, live)
    seconds = time.perf_counter() - started
    write(f"{phase}: compiled in {seconds:.0f} s")  # a large model takes minutes
    return Program(
        phase=phase,
        traced=traced,
        compiled=compiled,
        live=bytes_of_chip(live),
        refused=refused,
        arguments=arguments,
        seconds=seconds,
        **options,
    )


UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def bytes_refused(message: str) -> int:
    """Returns the bytes of a program that a refusal for memory names; 0 for other errors.

    libtpu calls them temporaries, and counts the arguments and outputs among them.
    """
    match = re.search(
        r"RESOURCE_EXHAUSTED.*?\(?([\d.]+)([KMGT])i?B?\)? *exceeds|"
        r"RESOURCE_EXHAUSTED.*?Used ([\d.]+)([KMGT])",
        message,
        re.DOTALL,
    )
    if match is None:
        return 0
    number, unit = [group for group in match.groups() if group]
    return int(float(number) * UNITS[unit])


def bytes_of_arguments(traced: Any, live: Any) -> int:
    """Returns the bytes of the arguments on a device, which are among the live arrays.

    JAX does not say how the arguments of a traced function are divided, but the live arrays do.
    """
    arrays = defaultdict[tuple, list[Any]](list)
    for each in jax.tree.leaves(live):
        arrays[each.shape, each.dtype].append(each)
    wanted = ((each.shape, each.dtype) for each in jax.tree.leaves(traced.in_avals))
    return bytes_of_chip([arrays[key].pop() for key in wanted if arrays[key]])


def programs(run: AbstractRun) -> list[Program]:
    """Returns all programs of a step. They compile in sequence: libtpu has crashed in parallel."""
    return [*weights_for_sampling(run), *rollout(run), *scoring(run), *updates(run)]


def weights_for_sampling(run: AbstractRun) -> Iterator[Program]:
    """Yields `placement.for_sampling`, unless other devices sample."""
    if isinstance(run.phases.rollout, Planned) and not run.mesh.rollout_devices:
        whole = run.policy.without_critic(run.state.params)
        wanted = run.copied_for_sampling()
        shardings = jax.tree.map(lambda x: x.sharding, wanted)
        decoder = run.policy.decoder
        prepare = partial(for_decoding, dtype=decoder.dtype, places=places(decoder.config))
        changed = jax.jit(prepare, out_shardings=shardings)
        yield program(
            "weights", changed.trace({name: whole[name] for name in wanted}), run.resident
        )


def unplanned(run: AbstractRun, *, estimated: bool = False) -> list[str]:
    """Returns the names of the parts of a step that a plan, or an estimate, leaves out."""
    rollout = run.phases.rollout
    traits = RolloutTraits.read(rollout)
    known = isinstance(rollout, KeepsCaches if estimated else Planned)
    left_out = [choice("rollout", rollout)] if traits.samples and not known else []
    if traits.sleep:
        left_out = ["the memory of servers while they sample (free during updates: rollout.sleep)"]
    if estimated and run.phases.taught:
        left_out.append("the activations of the teacher")
    if "greedy_rewards" in run.phases.needs():
        left_out.append(f"the greedy responses of {choice('advantage', run.phases.advantage)}")
    left_out += [f"the model of {key}" for key in models_of(run.phases.reward)]
    if run.overlaps and not estimated:
        left_out.append("the memory of sampling and update at the same time")
    if run.lacks_cudnn:
        left_out.append("the memory that cudnn saves (absent GPUs have xla in its place)")
    return left_out + [f"scores.{name}" for name in run.phases.scores]


def models_of(reward: Any, key: str = "reward") -> list[str]:
    """Returns the keys of the reward terms that run models."""
    traits = RewardTraits.read(reward)
    if traits.tasks is not None:  # whose terms it has together
        parts = [models_of(each, f"{key}.tasks.{task}") for task, each in traits.tasks.items()]
        return [name for part in parts for name in part]
    terms = (traits.terms or {}).items()
    return [f"{key}.terms.{name}" for name, term in terms if TermTraits.read(term).has_model]


def slots_of(run: AbstractRun) -> int | None:
    """Returns how many sequences the rollout decodes at a time; None without an option `slots`."""
    rollout = run.phases.rollout
    return rollout.slots_of(run.sequences) if isinstance(rollout, Planned) else None


def rollout(run: AbstractRun) -> list[Program]:
    """Compiles the programs that the rollout describes; returns none if it is not `Planned`."""
    rollout = run.phases.rollout
    if not isinstance(rollout, Planned):
        return []
    described, compiled, results = rollout.plan(run), [], None
    while True:
        try:
            each = described.send(results)
        except StopIteration:
            return compiled
        compiled.append(
            program(
                each.phase,
                each.traced,
                each.live,
                iterations=each.iterations,
                read=each.read,
                sampled=True,
            )
        )
        results, last = None, compiled[-1]
        if last.compiled is not None:
            results = with_shardings(last.traced.out_info, last.compiled.output_shardings)


def scoring(run: AbstractRun) -> Iterator[Program]:
    """Yields the programs of `Scoring` for the policy, the reference and the teacher."""
    phases, needs = run.phases, run.phases.needs()
    options, temperature = phases.score_options(run.policy), phases.temperature(0)
    trajectories = run.trajectories()
    live = run.resident, run.batch()
    policy_scores = sorted(needs & OF_POLICY.keys())
    if policy_scores:
        names = tuple(OF_POLICY[name] for name in policy_scores)
        values = phases.values if "values" in needs else None
        own = replace(options, names=names, values=values)
        traced = score_tokens.trace(
            own, run.policy.merged(run.state.params), trajectories, **temperature
        )
        yield program("scores", traced, live)
    for name, model in (("reference", run.reference), ("teacher", run.teacher)):
        # A teacher without a model of its own is the policy, or is behind servers.
        if f"{name}_logprobs" in needs and model is not None:
            own = replace(options, decoder=model[0])
            traced = score_tokens.trace(own, model[1], trajectories, **temperature)
            yield program(name, traced, live)


def updates(run: AbstractRun) -> list[Program]:
    """Compiles `gradient_step`, or the halves that run once for each minibatch."""
    options, phases = run.phases.update, run.phases
    objective = phases.objective(run.policy, run.group_size, run.teacher)
    coefficients = phases.coefficients(phases.initial_memory(), 0)
    coefficients = jax.tree.map(  # those that are arrays as shapes
        lambda x: run.replicated(jax.eval_shape(lambda: x)) if hasattr(x, "dtype") else x,
        coefficients,
    )
    frozen, batch = phases.frozen(run.policy, run.teacher), run.batch()
    if not OptimizerTraits.read(run.optimizer).offload:
        traced = gradient_step.trace(
            objective, run.optimizer, frozen, run.state, batch, coefficients
        )
        return [program("update", traced, (run.resident, batch))]
    minibatch = replace(run, prompts=run.prompts // options.minibatches).batch()
    times = options.epochs * options.minibatches
    live = run.resident, batch, minibatch
    traced = forward_backward.trace(objective, frozen, run.state, minibatch, coefficients)
    gradient = program("gradient", traced, live, times=times)
    shapes = traced.out_info
    if gradient.compiled is not None:
        shapes = with_shardings(shapes, gradient.compiled.output_shardings)
    traced = optimizer_step.trace(run.optimizer, run.mesh, run.state, shapes)
    return [gradient, program("optimizer", traced, (*live, shapes), times=times)]


def product_flops(jaxpr: Jaxpr, iterations: int = 1, devices: int = 1) -> float:
    """Returns the operations on all devices together, with those that a backward pass recomputes.

    A scan counts by its length, a loop of `microbatches.fold` by its maximum number of iterations,
    and a conditional by its most expensive branch. Only `dot_general` and `ragged_dot` count.

    Args:
      iterations: the number of iterations of every other loop.
      devices: the number of devices that divide the experts, unless a scope names it.
    """
    total = 0.0
    equation: Any
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        scope = str(equation.source_info.name_stack)
        share = devices_of_experts(scope) or devices
        if name == "dot_general":
            # A multiplication and an addition for each pair of numbers that meet.
            (contracted, _), _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            met = math.prod(shape[axis] for axis in contracted)
            total += 2.0 * met * math.prod(equation.outvars[0].aval.shape)
        elif name in ("ragged_dot", "ragged_dot_general"):  # each row is multiplied by one matrix
            # A device has the rows of all experts, and multiplies those of its own.
            rows, width = equation.invars[0].aval.shape[-2:]
            total += 2.0 * rows * width * equation.outvars[0].aval.shape[-1] / share
        inner = [product_flops(child, iterations, share) for child in children(params)]
        if name == "while":
            most = max_iterations(scope)
            total += sum(inner) * (iterations if most is None else most)
        elif name == "cond":
            total += max(inner)
        elif name == "scan":
            total += sum(inner) * params["length"]
        elif name == "shard_map":  # inside, shapes are of one shard; elsewhere they are global
            mesh = params["mesh"].shape
            total += sum(inner) * math.prod(mesh[axis] for axis in params["newly_manual_axes"])
        elif name == "pallas_call":
            total += sum(inner) * math.prod(params["grid_mapping"].grid)
        else:
            total += sum(inner)
    return total


def children(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yields the jaxprs within an equation."""
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each
