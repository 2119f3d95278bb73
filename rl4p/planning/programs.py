"""The compiled functions of a step, in its order, each with all that is on the devices meanwhile.

They are traced from the very calls of the loop, with shapes in the place of arrays. A program whose
arguments are another's results takes them as that one lays them out.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from rl4p.distributed.mesh import with_places
from rl4p.distributed.partition import as_sampled
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.logprobs import score_tokens
from rl4p.loop.scoring import OF_POLICY
from rl4p.planning.abstract import AbstractRun, bytes_of_chip, everywhere
from rl4p.protocols import Planned


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
      sampled: whether it runs on the devices that sample.
    """

    phase: str
    traced: Any
    compiled: Any
    live: int
    refused: int = 0
    turns: int = 1
    read: float | None = None
    seconds: float = 0.0
    sampled: bool = False

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
    """Yields `Mesh.for_sampling`, where the devices are the same."""
    if isinstance(run.phases.rollout, Planned) and run.mesh.sampling is run.mesh:
        whole, wanted = run.without_critic(), run.handed_over()
        places = jax.tree.map(lambda x: x.sharding, wanted)
        dtype = run.policy.decoder.dtype
        changed = jax.jit(partial(as_sampled, dtype=dtype), out_shardings=places)
        yield program("weights", changed.trace({name: whole[name] for name in wanted}), run.lasting)


def unplanned(run: AbstractRun) -> list[str]:
    """Returns the phases of a step that run programs which no plan knows."""
    rollout = run.phases.rollout
    samples = getattr(rollout, "samples", True)
    left_out = ["rollout"] if samples and not isinstance(rollout, Planned) else []
    if "teacher_logprobs" in run.phases.needs():
        left_out.append("the teacher")
    return left_out + [f"scores.{name}" for name in run.phases.scores]


def slots_of(run: AbstractRun) -> int | None:
    """Returns how many sequences the rollout decodes at a time; None without such an option."""
    rollout = run.phases.rollout
    return rollout.slots_of(run.sequences) if isinstance(rollout, Planned) else None


def rollout(run: AbstractRun) -> list[Program]:
    """Compiles the programs of the rollout, as it describes them; none if it does not."""
    rollout = run.phases.rollout
    if not isinstance(rollout, Planned):
        return []
    described, compiled = rollout.plan(run), []
    each = next(described, None)
    while each is not None:
        compiled.append(
            program(each.phase, each.traced, each.live, turns=each.turns, read=each.read)
        )
        results = None if compiled[-1].compiled is None else compiled[-1].results()
        try:
            each = described.send(results)
        except StopIteration:
            each = None
    return [replace(each, sampled=True) for each in compiled]


def scoring(run: AbstractRun) -> Iterator[Program]:
    """Those of `Scoring` that run the policy or its reference; a teacher is not planned."""
    phases, needs = run.phases, run.phases.needs()
    options = {
        "sampling": phases.rollout.sampling,
        "microbatching": phases.update.microbatching,
        "mesh": run.mesh,
    }
    trajectories = run.trajectories()
    live = run.lasting, run.batch()
    of_policy = sorted(needs & OF_POLICY.keys())
    calls = {}
    if of_policy:
        calls["scores"] = {
            "names": tuple(OF_POLICY[name] for name in of_policy),
            "values": phases.values if "values" in needs else None,
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
