"""What each program of a plan costs, and whether it fits."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rl4p.distributed.chips import GIB, Chip
from rl4p.distributed.mesh import Mesh
from rl4p.planning.abstract import AbstractRun
from rl4p.planning.flops import product_flops
from rl4p.planning.hlo import collectives, largest_loop_copy
from rl4p.planning.programs import Program, slots_of


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Of the collectives of one kind.

    Attributes:
      count: how often one runs.
      bytes: of the whole arrays that are gathered, reduced or exchanged.
      sent: that one device sends at least (`hlo.Collective.sent`).
    """

    count: int
    bytes: int
    sent: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one program, in a step; bytes are those of one device.

    Attributes:
      arguments, outputs, temporaries, aliased: by the compiler; aliased outputs lie in arguments.
      beside: of what is on the device meanwhile and is no argument.
      total: beside + arguments + outputs + temporaries - aliased.
      flops: of all devices: of products, by their shapes.
      collectives: by kind and the axes that their devices lie along, as "all-gather over fsdp".
      largest_loop_copy: bytes of the largest array that the body of a loop copies.
      seconds_at_least: a bound: products at the chip's full rate, or bytes at its full bandwidth,
        whichever takes longer; None where the chip's rates are not known.
    """

    phase: str
    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    beside: int
    total: int
    flops: float
    collectives: dict[str, Traffic]
    largest_loop_copy: int
    seconds_at_least: float | None
    compile_seconds: float


def cost(program: Program, chip: Chip, mesh: Mesh) -> Cost:
    """Reads the compiled program, which runs on these devices."""
    flops = product_flops(program.traced.jaxpr.jaxpr, program.turns)
    if program.compiled is None:
        return refused(program, flops)
    memory, text = program.compiled.memory_analysis(), program.compiled.as_text()
    arguments, outputs = memory.argument_size_in_bytes, memory.output_size_in_bytes
    temporaries, aliased = memory.temp_size_in_bytes, memory.alias_size_in_bytes
    beside = max(0, program.live - arguments)
    count, whole, sent = Counter[str](), Counter[str](), Counter[str]()
    for each in collectives(text, program.turns):
        name = f"{each.kind} over {axes_of(each.group, mesh.devices.shape)}"
        count[name] += each.times
        whole[name] += each.times * each.bytes
        sent[name] += round(each.sent)
    seconds = None
    if chip.flops:
        read = program.read or arguments + outputs - aliased
        seconds = max(flops / mesh.size / chip.flops, read / chip.bandwidth)
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
        seconds_at_least=seconds,
        compile_seconds=program.seconds,
    )


def axes_of(group: Sequence[int], shape: Mapping[str, int]) -> str:
    """Those along which devices of a group differ."""
    places = np.unravel_index(np.asarray(group), tuple(shape.values()))
    return " x ".join(axis for axis, at in zip(shape, places, strict=True) if len({*at}) > 1)


def refused(program: Program, flops: float) -> Cost:
    """Of a program that the compiler gave up: its results are among its temporaries."""
    return Cost(
        phase=program.phase,
        arguments=0,
        outputs=0,
        temporaries=program.refused,
        aliased=0,
        beside=program.live,
        total=program.live + program.refused,
        flops=flops,
        collectives={},
        largest_loop_copy=0,
        seconds_at_least=None,
        compile_seconds=program.seconds,
    )


def as_json(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    return [asdict(each) for each in costs]


def advice(run: AbstractRun, costs: Sequence[Cost], memory: float) -> str:
    """The change that would make the largest program fit; temporaries go by the tokens at a time.

    An estimate: plan again with it.
    """
    worst = max(costs, key=lambda each: each.total)
    fixed = worst.total - worst.temporaries
    chips = f"{math.ceil(run.mesh.size * worst.total / memory)} chips like these"
    share = (memory - fixed) / max(worst.temporaries, 1)
    if worst.phase in ("update", "scores", "reference"):
        decoder, update = run.policy.decoder, run.phases.update
        if fixed > memory:
            if getattr(run.optimizer, "moment_dtype", None) == "float32":
                return f"optimizer.moment_dtype=bfloat16, or {chips}"
            return chips
        if worst.phase == "update" and decoder.remat != "layer":
            return "model.remat=layer"
        tokens = 2 ** int(math.log2(max(1, update.tokens_per_microbatch * share)))
        if run.response_tokens <= tokens < update.tokens_per_microbatch:
            return f"update.tokens_per_microbatch={tokens}"
        return chips
    slots = slots_of(run)
    if worst.phase in ("arrange", "decode") and slots is not None:
        share = memory / worst.total
        fewer = 2 ** int(math.log2(max(1.0, slots * share)))
        if run.mesh.row_shards * 8 <= fewer < slots:
            return f"rollout.slots={fewer}"
    return chips


def unit_of(size: float) -> tuple[str, int]:
    """What sizes up to this one are written in."""
    return ("GiB", GIB) if size >= GIB / 10 else ("MiB", GIB // 1024)
