"""The costs of the programs of a plan, and advice if one of them does not fit."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rl4p.configuration.slices import GIB, Chip, least_hops
from rl4p.distributed.mesh import Mesh, divided_by_sampling
from rl4p.tools.planning.abstract import AbstractRun
from rl4p.tools.planning.hlo import collectives, largest_loop_copy
from rl4p.tools.planning.programs import Program, product_flops, slots_of


def sizes_of(run: AbstractRun, chip: Chip, memory: float) -> dict[str, Any]:
    """Returns the devices and the sizes of a step, as plan.json has them."""
    return {
        "chip": chip.kind,
        "memory": memory,
        "mesh": dict(run.mesh.devices.shape),
        "topology": run.mesh.topology,
        "step": {
            "prompts": run.prompts,
            "group_size": run.group_size,
            "prompt_tokens": run.prompt_columns,
            "response_tokens": run.response_tokens,
        },
    }


def heading(report: Mapping[str, Any], of_chip: str = "") -> str:
    """Returns the devices and the sizes of a step in words."""
    mesh, step = report["mesh"], report["step"]
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1)
    return (
        f"{math.prod(mesh.values())} x {report['chip']}{of_chip} as {axes or 'one'}: "
        f"{step['prompts']} prompts x {step['group_size']} samples of at most "
        f"{step['prompt_tokens']} + {step['response_tokens']} tokens"
    )


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The traffic of the collectives of one kind."""

    count: int  # the number of times that such a collective runs
    bytes: int  # the bytes of the full arrays that are gathered, reduced or exchanged
    sent: float  # the least bytes that one device sends (`hlo.Collective.sent`)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one program in a step. Bytes are per device.

    Attributes:
      arguments, outputs, aliased: the compiler's counts in bytes. Aliased outputs reuse donated
        buffers.
      temporaries: the compiler's count in bytes; on a TPU, what its peak has beside the arguments
        and outputs.
      beside: the bytes of arrays that are on the device meanwhile but are not arguments.
      total: beside + arguments + outputs + temporaries - aliased.
      flops: the floating-point operations of all matrix products on all devices.
      collectives: the traffic by kind and mesh axes, such as "all-gather over fsdp".
      largest_loop_copy: the bytes of the largest array that the body of a loop copies.
      seconds: lower bounds of the time: of the products at the chip's peak rate, of the reads at
        its peak bandwidth (memory), and of its collectives along one axis of the mesh, one after
        the other (network). Empty if the rates are not known.
      seconds_at_least: the longest of them, or None.
    """

    phase: str
    arguments: int = 0
    outputs: int = 0
    temporaries: int
    aliased: int = 0
    beside: int
    total: int
    flops: float
    collectives: dict[str, Traffic] = field(default_factory=dict)
    largest_loop_copy: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    seconds_at_least: float | None = None
    compile_seconds: float


def cost(program: Program, chip: Chip, mesh: Mesh) -> Cost:
    """Returns the cost of a compiled program that runs on `mesh`."""
    flops = program.times * product_flops(program.traced.jaxpr.jaxpr, program.iterations)
    if program.compiled is None:  # too large; the temporaries include its results
        beside = program.live - program.arguments
        return Cost(
            phase=program.phase,
            arguments=program.arguments,
            temporaries=max(0, program.refused - program.arguments),
            beside=beside,
            total=beside + max(program.refused, program.arguments),
            flops=flops,
            compile_seconds=program.seconds,
        )
    memory, text = program.compiled.memory_analysis(), program.compiled.as_text()
    arguments, outputs = memory.argument_size_in_bytes, memory.output_size_in_bytes
    temporaries, aliased = memory.temp_size_in_bytes, memory.alias_size_in_bytes
    if chip.platform == "tpu" and (peak := memory.peak_memory_in_bytes):
        # Its temporaries are not all in memory at a time; others allocate them as one block.
        temporaries = max(0, peak - (arguments + outputs - aliased))
    beside = max(0, program.live - arguments)
    count, whole, sent = Counter[str](), Counter[str](), Counter[str]()
    along = defaultdict[str, float](float)  # seconds, by axes, which have links of their own
    for each in collectives(text, program.iterations):
        each = replace(each, times=program.times * each.times)
        axes = axes_of(each.group, mesh.devices.shape)
        if chip.network:
            hops = least_hops(each.group, mesh.topology)
            along[axes] += each.sent / chip.network + each.times * hops * chip.latency
        name = f"{each.kind} over {axes}"
        count[name] += each.times
        whole[name] += each.times * each.bytes
        sent[name] += round(each.sent)
    seconds = {}
    if chip.flops:
        read = program.times * (program.read or arguments + outputs - aliased)
        seconds = {"products": flops / mesh.size / chip.flops, "memory": read / chip.bandwidth}
        if chip.network:
            seconds["network"] = max(along.values(), default=0.0)
    return Cost(
        phase=program.phase,
        arguments=arguments,
        outputs=outputs,
        temporaries=temporaries,
        aliased=aliased,
        beside=beside,
        total=beside + arguments + outputs + temporaries - aliased,
        flops=flops,
        collectives={
            kind: Traffic(count=count[kind], bytes=whole[kind], sent=sent[kind])
            for kind in sorted(count)
        },
        largest_loop_copy=largest_loop_copy(text),
        seconds=seconds,
        seconds_at_least=max(seconds.values(), default=None),
        compile_seconds=program.seconds,
    )


def axes_of(group: Sequence[int], shape: Mapping[str, int]) -> str:
    """Returns the mesh axes along which the devices of a group differ."""
    places = np.unravel_index(np.asarray(group), tuple(shape.values()))
    return " x ".join(axis for axis, at in zip(shape, places, strict=True) if len({*at}) > 1)


# What shortens a phase, by its longest bound.
SHORTER = {
    "products": "more chips, or fewer tokens a step",
    "memory": "more sequences at a time, which share each read of the parameters, or more chips",
    "network": "another division of the devices (mesh.shape), or a larger microbatch",
}


def bound_of_step(
    costs: Sequence[Cost], tokens: int, chips: int, wider: int | None, recomputes: bool
) -> str | None:
    """Returns a sentence about the least time of a step; None if the rates are not known.

    Args:
      wider: what `wider_sampling` returns.
      recomputes: whether updates recompute whole layers, and the run fits.
    """
    if not costs or not all(each.seconds for each in costs):
        return None
    total = sum(each.seconds_at_least or 0.0 for each in costs)
    longest = max(costs, key=lambda each: each.seconds_at_least or 0.0)
    pole = max(longest.seconds, key=lambda part: longest.seconds[part])
    shorter = SHORTER[pole]
    if wider and (longest.phase, pole) == ("decode", "memory"):
        shorter = f"mesh.sampling_tp={wider}, with which a device reads fewer parameters, {shorter}"
    if recomputes and pole == "products" and longest.phase in ("update", "gradient"):
        shorter = f"model.remat=elementwise, if it fits, which recomputes little, {shorter}"
    return (
        f"A step takes at least {total:,.2f} s: at most {tokens / total / chips:,.0f} response "
        f"tokens/s on each chip. The longest part is {longest.phase}, by its {pole} "
        f"({longest.seconds_at_least:,.2f} s). Shorter with: {shorter}."
    )


def wider_sampling(run: AbstractRun) -> int | None:
    """Returns the largest `mesh.sampling_tp` for a model; None if it is not more than now."""
    largest = sampling_sizes(run)[-1]
    return largest if largest > run.policy.sampling_mesh.devices_per_row else None


def sampling_sizes(run: AbstractRun) -> list[int]:
    """Returns the values of `mesh.sampling_tp` that divide the devices and the model, from 1."""
    sizes = divided_by_sampling(run.policy.decoder.config.dimensions)
    whole = math.gcd(run.policy.sampling_mesh.size, *sizes.values())
    return [tp for tp in range(1, whole + 1) if whole % tp == 0]


def advice(run: AbstractRun, costs: Sequence[Cost], memory: float) -> str:
    """Returns a change of the configuration that should make the largest program fit.

    It is an estimate: it takes temporaries as proportional to the tokens in memory. Plan again.
    """
    worst = max(costs, key=lambda each: each.total)
    fixed = worst.total - worst.temporaries
    chips = f"{math.ceil(run.mesh.size * worst.total / memory)} chips like these"
    share = (memory - fixed) / max(worst.temporaries, 1)
    if worst.phase in ("update", "gradient", "optimizer", "scores", "reference", "teacher"):
        decoder, update = run.policy.decoder, run.phases.update
        if fixed > memory:
            if run.can_offload:
                absent = run.mesh.platform == "gpu" and run.mesh.topology is not None
                how = " (planned with estimate=true)" if absent else ""
                return f"optimizer.offload=true{how}, or {chips}"
            if getattr(run.optimizer, "moment_dtype", None) == "float32":
                return f"optimizer.moment_dtype=bfloat16, or {chips}"
            return chips
        if worst.phase in ("update", "gradient") and decoder.remat != "layer":
            return "model.remat=layer"
        tokens = 2 ** int(math.log2(max(1, update.tokens_per_microbatch * share)))
        if run.response_tokens // run.mesh.column_shards <= tokens < update.tokens_per_microbatch:
            return f"update.tokens_per_microbatch={tokens}"
        return chips
    slots = slots_of(run)
    if worst.phase in ("arrange", "decode") and slots is not None:
        share = memory / worst.total
        fewer = 2 ** int(math.log2(max(1.0, slots * share)))
        if run.policy.sampling_mesh.row_shards * 8 <= fewer < slots:
            return f"rollout.slots={fewer}"
    return chips


def unit_of(size: float) -> tuple[str, int]:
    """Returns the name and the bytes of the unit in which to print sizes up to `size`."""
    return ("GiB", GIB) if size >= GIB / 10 else ("MiB", GIB // 1024)
