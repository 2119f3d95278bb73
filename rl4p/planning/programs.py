"""The compiled functions of a step, in its order, each with all that is on the devices meanwhile.

They are traced from the very calls of the loop, with shapes in the place of arrays. A program whose
arguments are another's results takes them as that one lays them out.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rl4p.mesh import with_places
from rl4p.model.logprobs import score_tokens
from rl4p.partition import as_sampled
from rl4p.planning.abstract import AbstractRun, bytes_of_chip, everywhere
from rl4p.rollout.continuous import (
    Continuous,
    Responses,
    Slots,
    decode,
    of_cache,
    prefill,
    rearranged,
    slot_counts,
)
from rl4p.rollout.naive_sampler import NaiveSampler, generate
from rl4p.scoring import OF_POLICY
from rl4p.types import Params
from rl4p.update.gradient_step import gradient_step


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function of a run, compiled.

    Attributes:
      phase: what it is called in the plan.
      traced, compiled: by JAX; None where the compiler found that it cannot fit.
      refused: bytes of temporaries that the compiler did not find room for.
      live: bytes of one device that hold its arguments and what else stays there meanwhile.
      turns: of its loop that goes on for as long as there is something to do.
      read: bytes of one device that it reads at least, if that is not each argument once.
      seconds: that compiling took.
    """

    phase: str
    traced: Any
    compiled: Any
    live: int
    refused: int = 0
    turns: int = 1
    read: float | None = None
    seconds: float = 0.0

    def results(self) -> Any:
        return with_places(self.traced.out_info, self.compiled.output_shardings)


def program(phase: str, traced: Any, live: Any, **options: Any) -> Program:
    """Compiles what was traced."""
    started = time.perf_counter()
    compiled, refused = None, 0
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        refused = bytes_refused(str(error))
        if not refused:
            raise
    seconds = time.perf_counter() - started
    print(f"{phase}: compiled in {seconds:.0f} s", flush=True)  # of a large model it takes minutes
    live = bytes_of_chip(live)
    return Program(
        phase=phase,
        traced=traced,
        compiled=compiled,
        live=live,
        refused=refused,
        seconds=seconds,
        **options,
    )


UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def bytes_refused(message: str) -> int:
    """Of temporaries, in the compiler's words when they exceed the chip; 0 if it says no such."""
    found = re.search(
        r"RESOURCE_EXHAUSTED.*?\(?([\d.]+)([KMGT])i?B?\)? *exceeds|"
        r"RESOURCE_EXHAUSTED.*?Used ([\d.]+)([KMGT])",
        message,
        re.DOTALL,
    )
    if found is None:
        return 0
    number, unit = [group for group in found.groups() if group]
    return int(float(number) * UNITS[unit])


def programs(run: AbstractRun) -> list[Program]:
    """All of a step, one after the other: asked for two at once, libtpu has crashed."""
    return [*hand_over(run), *rollout(run), *scoring(run), update(run)]


def hand_over(run: AbstractRun) -> Iterator[Program]:
    """`Mesh.for_sampling`, where the devices are the same."""
    if type(run.phases.rollout) in SAMPLERS and run.mesh.sampling is run.mesh:
        whole, wanted = run.without_critic(), run.handed_over()
        places = jax.tree.map(lambda x: x.sharding, wanted)
        dtype = run.policy.decoder.dtype
        changed = jax.jit(partial(as_sampled, dtype=dtype), out_shardings=places)
        yield program("weights", changed.trace({name: whole[name] for name in wanted}), run.lasting)


SAMPLED = ("prefill", "arrange", "decode")  # phases of the devices that sample


def rollout(run: AbstractRun) -> list[Program]:
    """Those of the rollout phase; none of one that runs no program of this package."""
    of = SAMPLERS.get(type(run.phases.rollout))
    return [] if of is None else list(of(run))


def of_continuous(run: AbstractRun) -> Iterator[Program]:
    """`Continuous.__call__`, when its cache is at its largest."""
    sampler: Any = run.phases.rollout
    policy, mesh, params = run.policy, run.mesh.sampling, run.sampling_params()
    P, W, B, R = run.prompts, run.prompt_columns, run.sequences, run.response_tokens
    replicated = partial(everywhere, mesh)
    lasting = run.lasting_where_sampled()
    rows = P + -P % mesh.row_shards
    tokens_PT, mask_PT = (run.rows((rows, W), dtype, mesh) for dtype in (jnp.int32, jnp.bool_))
    traced = prefill.trace(policy.decoder, params, tokens_PT, mask_PT, mesh)
    first = program("prefill", traced, lasting)
    yield first
    if first.compiled is None:  # what follows takes its results
        return
    prefilled = first.results()

    n = slot_counts(min(sampler.slots or B, B), mesh.row_shards, R)[0]
    of_slots: Any = jax.ShapeDtypeStruct((n,), jnp.int32)
    new_n = jax.ShapeDtypeStruct((n,), jnp.bool_)
    on_rows = (lambda x: run.rows(x.shape, x.dtype, mesh)) if mesh.size > 1 else replicated
    cache = jax.eval_shape(lambda cache, rows: cache.rows(rows, W + R), prefilled, of_slots)
    cache = with_places(cache, of_cache(cache, mesh))
    arranged = rearranged.trace(cache, prefilled, of_slots, of_slots, new_n, W + R, mesh)
    yield program("arrange", arranged, (lasting, prefilled, cache))

    slots = jax.tree.map(on_rows, Slots(of_slots, of_slots, of_slots))
    responses = replicated(jax.eval_shape(lambda: Responses.empty(B, R)))
    key = replicated(run.state.key)
    traced = decode.trace(
        policy.decoder,
        sampler.sampling,
        policy.end_ids,
        W,
        params,
        jax.ShapeDtypeStruct((B,), jnp.int32),
        slots,
        cache,
        responses,
        key,
        False,
        0,
    )
    turns = R * -(-B // n)
    # A cache is read as far as it is written: half of the responses, taken over all turns.
    written = bytes_of_chip(cache.layers) * (W + R / 2) / (W + R)
    read = turns * (bytes_of_chip((params["layers"], head_of(params))) + written)
    live = (lasting, prefilled, cache, slots, responses)
    yield program("decode", traced, live, turns=turns, read=read)


def head_of(params: Params) -> Any:
    return params.get("head", params["embedding"])


def of_naive_sampler(run: AbstractRun) -> Iterator[Program]:
    """`NaiveSampler.__call__`."""
    sampler, policy, params = run.phases.rollout, run.policy, run.sampling_params()
    B, W, R = run.sequences, run.prompt_columns, run.response_tokens
    mesh = run.mesh.sampling
    tokens_BT, mask_BT = (run.rows((B, W), dtype, mesh) for dtype in (jnp.int32, jnp.bool_))
    traced = generate.trace(
        policy.decoder,
        sampler.sampling,
        R,
        policy.end_ids,
        params,
        tokens_BT,
        mask_BT,
        everywhere(mesh, run.state.key),
        False,
    )
    lasting = run.lasting_where_sampled()
    read = R * bytes_of_chip((params["layers"], head_of(params)))
    yield program("decode", traced, (lasting, tokens_BT, mask_BT), turns=R, read=read)


SAMPLERS: dict[type, Callable[[AbstractRun], Iterator[Program]]] = {
    Continuous: of_continuous,
    NaiveSampler: of_naive_sampler,
}


def scoring(run: AbstractRun) -> Iterator[Program]:
    """Those of `Scoring` that run the policy or its reference; a teacher is not planned."""
    phases, needs = run.phases, run.phases.needs()
    options = {
        "sampling": phases.rollout.sampling,
        "tokens_per_microbatch": phases.update.tokens_per_microbatch,
        "microbatch_widths": phases.update.microbatch_widths,
        "mesh": run.mesh,
    }
    trajectories = run.trajectories()
    live = run.lasting, run.batch()
    of_policy = sorted(needs & OF_POLICY.keys())
    calls = {}
    if of_policy:
        calls["scores"] = {
            "names": tuple(OF_POLICY[name] for name in of_policy),
            "values": phases.critic.values if "values" in needs else None,
        }
    if "reference_logprobs" in needs:
        calls["reference"] = {}
    for phase, more in calls.items():
        params = run.whole() if phase == "scores" else run.reference()
        traced = score_tokens.trace(run.policy.decoder, params, trajectories, **options, **more)
        yield program(phase, traced, live)


def update(run: AbstractRun) -> Program:
    """`gradient_step`."""
    phases, batch = run.phases, run.batch()
    coefficients = phases.coefficients(phases.initial_memory())
    coefficients = jax.tree.map(
        lambda x: everywhere(run.mesh, jax.eval_shape(lambda: x)) if hasattr(x, "dtype") else x,
        coefficients,
    )
    traced = gradient_step.trace(
        phases.objective(run.group_size),
        run.policy.decoder,
        phases.rollout.sampling,
        run.optimizer,
        run.policy.frozen,
        run.state,
        batch,
        coefficients,
        run.mesh,
    )
    return program("update", traced, (run.lasting, batch))
