"""The report of an estimate: whether a run fits, what makes it fit, and the time that it takes."""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from omegaconf import DictConfig
from rich.table import Table

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError
from rl4p.configuration import instantiate
from rl4p.configuration.slices import GIB, Chip
from rl4p.distributed.mesh import Mesh
from rl4p.loop.evaluation import Evaluation
from rl4p.protocols.data_and_model import PlannedModel
from rl4p.tools.planning.abstract import AbstractRun, abstract_run, bytes_of_chip, of_host
from rl4p.tools.planning.costs import heading, sampling_sizes, sizes_of, unit_of
from rl4p.tools.planning.estimate import Parts, StepEstimate
from rl4p.tools.planning.programs import slots_of, unplanned
from rl4p.tools.planning.topology import FRACTION, estimated, gpu_share, memory_of

# CPU: 0.5 in the steps of `experiment=smollm2_sums_cpu` on two cores, 0.65 in its evaluations. GPU:
# an H100 at the shape of Qwen2.5-1.5B (docs/evidence/measured.md), by its data sheet.
SHARE = {"cpu": 0.55, "gpu": 0.35}
WIDTH = 1536  # of the matrices that are multiplied to measure a rate
NUMBERS = 2**25  # that are read to measure the bandwidth of memory
REPETITIONS = 3  # after the first; the fastest counts


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """The estimated time of a run, for responses of full length and without compilation."""

    # step, evaluation: the seconds of one; those of an evaluation that samples nothing are 0
    step: float
    evaluation: float
    # steps, evaluations: the number of each in the run
    steps: int
    evaluations: int

    def words(self) -> str:
        """Returns a sentence with the seconds of a step, and the minutes of the run."""
        step, evaluation = (
            f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.1f}"
            for seconds in (self.step, self.evaluation)
        )
        total = self.steps * self.step + self.evaluations * self.evaluation
        parts, counts = f"a step {step} s", f"{self.steps:,} step{'s' * (self.steps != 1)}"
        if self.evaluation:
            parts += f", an evaluation {evaluation} s"
            counts += f" and {self.evaluations:,} evaluation{'s' * (self.evaluations != 1)}"
        verb = "takes" if counts == "1 step" else "take"
        return (
            f"time by estimate, without compilation: {parts}; {counts} {verb} "
            f"{max(1, round(total / 60)):,} min"
        )


def expected_time(
    estimate: StepEstimate, evaluation: Evaluation, steps: int
) -> ExpectedTime | None:
    """Returns the estimated time of a run; None if it cannot be known.

    It cannot if servers or other devices sample, or if the share of the platform has not been
    measured. Rewards and the scores of other models are not included.
    """
    mesh = estimate.run.mesh
    share = SHARE.get(mesh.platform)
    seconds = [max(estimate.seconds[phase].values(), default=0.0) for phase in estimate.memory]
    if share is None or mesh.rollout_devices or not all(seconds):
        return None
    of_evaluation = 0.0  # of its chunks, each with all its rows
    for together, count in Counter(chunk.together for chunk in evaluation.chunks()).items():
        run = replace(
            estimate.run,
            phases=evaluation.phases,
            prompts=evaluation.rows // together,
            group_size=together,
            response_tokens=evaluation.phases.rollout.max_response_tokens,
        )
        of_evaluation += count * max(estimate.of_sampling(run).values(), default=0.0)
    return ExpectedTime(
        step=sum(seconds) / share,
        evaluation=of_evaluation / share,
        steps=steps,
        evaluations=evaluation.times(steps),
    )


def with_rates(chip: Chip, mesh: Mesh, dtype: Any) -> Chip:
    """Returns a chip with its rates of products and of memory, which are measured if unknown.

    All devices of a mesh that this process has are measured at once, since those of a CPU share
    its cores and its memory. Sending between them counts as nothing.
    """
    if chip.flops:
        return chip
    own = jax.process_index()
    devices = [x for x in mesh.devices.devices.flat if x.process_index == own]

    def seconds(function: Callable[[jax.Array], jax.Array], *shape: int) -> float:
        arrays = [jax.device_put(jnp.ones(shape, dtype), device) for device in devices]
        compiled, times = jax.jit(function), []
        for _ in range(1 + REPETITIONS):
            began = time.perf_counter()
            jax.block_until_ready([compiled(x) for x in arrays])
            times.append(time.perf_counter() - began)
        return min(times[1:])

    read = NUMBERS * jnp.dtype(dtype).itemsize
    return replace(
        chip,
        flops=2 * WIDTH**3 / seconds(lambda x: x @ x, WIDTH, WIDTH),
        bandwidth=read / seconds(jnp.sum, NUMBERS),
        network=math.inf,
    )


def estimate(config: DictConfig) -> dict[str, Any]:
    """Returns the content of plan.json for an estimate."""
    for option in ("search", "all_widths"):
        if config.plan[option]:
            raise InputError(f"plan.{option} compiles programs: leave it or estimate=true out.")
    mesh = estimated(instantiate(config.mesh))
    run = abstract_run(config, mesh)
    chip, memory = memory_of(mesh)
    if config.plan.memory_gib is not None:
        memory = config.plan.memory_gib * GIB
    estimate = StepEstimate(run=run, chip=chip)
    total = {phase: sum(parts.values()) for phase, parts in estimate.memory.items()}
    worst = max(total, key=lambda phase: total[phase])
    fits = memory == 0 or total[worst] <= memory
    name, unit = unit_of(total[worst])
    use = f"{total[worst] / unit:,.2f} of {memory / unit:,.2f} {name} per chip, in {worst}"
    verdict, change = f"It fits by the estimate: {use}.", None
    if not fits:
        change = change_that_fits(estimate, memory)
        verdict = (
            f"It does not fit by the estimate: {use} ({largest(estimate.memory[worst])}). "
            f"What makes it fit: {change}."
        )
    if chip.platform == "gpu" and config.plan.memory_gib is None:
        whole = memory / gpu_share()
        verdict += f" JAX takes {gpu_share():.0%} of a GPU's {whole / GIB:,.1f} GiB ({FRACTION})."
    if left_out := unplanned(run, estimated=True):
        verdict += f" Not included: {', '.join(left_out)}."
    report = sizes_of(run, chip, memory)
    report["step"] |= {
        "rows_of_microbatch": estimate.layout.rows,
        "microbatches": estimate.layout.microbatches,
    }
    return report | {
        "estimate": True,
        "fits": fits,
        "verdict": verdict,
        "unplanned": left_out,
        "change": change,
        "base": base_of(run),
        "phases": estimate.memory,
        "seconds_at_least": estimate.seconds,
        "faster_sampling": faster_sampling(estimate, memory),
        "update_without_recomputed_layers": without_recomputed_layers(estimate, memory),
    }


def faster_sampling(estimate: StepEstimate, memory: float) -> tuple[int, float] | None:
    """Returns the `mesh.sampling_tp` that samples fastest, and its least seconds.

    Returns None if no other one fits and is a tenth faster, or if the rates are not known.
    """
    run, before = estimate.run, estimate.seconds["sampling"]
    if not before:
        return None
    best, fastest = None, 0.9 * max(before.values())
    for tp in sampling_sizes(run):
        mesh = replace(run.mesh, sampling_tp=tp)
        other = replace(run, mesh=mesh, policy=replace(run.policy, mesh=mesh))
        seconds = max(estimate.of_sampling(other).values())
        held = sum(replace(estimate, run=other).while_sampling().values())
        if seconds < fastest and (memory == 0 or held <= memory):
            best, fastest = (tp, seconds), seconds
    return best


def without_recomputed_layers(estimate: StepEstimate, memory: float) -> float | None:
    """Returns the least seconds of an update with `model.remat=elementwise` in place of `layer`.

    Returns None if no whole layers are recomputed, if it does not fit or is not a tenth faster, or
    if the rates are not known.
    """
    run, before = estimate.run, estimate.seconds["update"]
    if not before or run.policy.decoder.remat != "layer":
        return None
    decoder = replace(run.policy.decoder, remat="elementwise")
    other = replace(estimate, run=replace(run, policy=replace(run.policy, decoder=decoder)))
    seconds = max(other.seconds["update"].values())
    fits = memory == 0 or sum(other.memory["update"].values()) <= memory
    return seconds if fits and seconds < 0.9 * max(before.values()) else None


def needed(config: DictConfig, evaluation: Evaluation) -> list[str]:
    """Returns sentences about the memory and the time of a run; none for models without a plan."""
    if not isinstance(instantiate(config.model), PlannedModel):
        return []
    mesh = instantiate(config.mesh)
    (chip, memory), run = memory_of(mesh), abstract_run(config, mesh)
    chip = with_rates(chip, mesh, run.policy.decoder.dtype)
    estimate = StepEstimate(run=run, chip=chip)
    phases = ", ".join(
        f"{phase} {sum(parts.values()) / GIB:,.1f}" for phase, parts in estimate.memory.items()
    )
    sentences = [f"memory of a device by estimate, GiB: {phases}, of {memory / GIB:,.1f}"]
    if (expected := expected_time(estimate, evaluation, config.steps)) is not None:
        sentences.append(expected.words())
    return sentences


def base_of(run: AbstractRun) -> dict[str, float] | None:
    """Returns the bytes and the number of frozen parameters, all of them and those in layers."""
    base = run.policy.frozen
    if not base:
        return None

    def is_kernel(x: Any) -> bool:  # of an NF4 kernel the whole, not its codes
        return hasattr(x, "shape")

    count = {
        name: sum(math.prod(x.shape) for x in jax.tree.leaves(tree, is_leaf=is_kernel))
        for name, tree in (("all", base), ("layers", base["layers"]))
    }
    return {
        "bytes": bytes_of_chip(base),
        "bytes_of_layers": bytes_of_chip(base["layers"]),
        "parameters": count["all"],
        "parameters_of_layers": count["layers"],
    }


def largest(parts: Parts) -> str:
    """Returns the three largest parts in words."""
    name, unit = unit_of(sum(parts.values()))
    order = sorted(parts, key=lambda part: -parts[part])[:3]
    return f"{name}: " + ", ".join(f"{part} {parts[part] / unit:,.2f}" for part in order)


def change_that_fits(estimate: StepEstimate, memory: float) -> str:
    """Returns the overrides with which both phases fit, or a larger change if there are none."""
    changed: dict[str, Any] = {}
    while over := next((x for x, y in estimate.memory.items() if sum(y.values()) > memory), None):
        if (step := smaller(estimate, over)) is None:
            return larger_change(estimate, memory, over)
        key, changed[key], run = step[0], step[1], step[2]
        estimate = replace(estimate, run=run)
    return " ".join(f"{key}={value}" for key, value in changed.items())


def smaller(estimate: StepEstimate, phase: str) -> tuple[str, Any, AbstractRun] | None:
    """Returns an option with which a phase needs less, and the run with it; None if it has none.

    Sampling has half of the slots, unless they are few. An update recomputes whole layers, and then
    has half of a microbatch. Both can have the optimizer's state in the memory of the host.
    """
    run, layout = estimate.run, estimate.layout
    half = (slots_of(run) or 0) // 2
    if phase == "sampling" and half >= run.policy.sampling_mesh.row_shards * 8:
        rollout = replace(run.phases.rollout, slots=half)  # type: ignore[type-var]
        return "rollout.slots", half, replace(run, phases=replace(run.phases, rollout=rollout))
    if phase == "update" and run.policy.decoder.remat != "layer":
        decoder = replace(run.policy.decoder, remat="layer", unroll=False)
        return "model.remat", "layer", replace(run, policy=replace(run.policy, decoder=decoder))
    if phase == "update":
        tokens = layout.rows // 2 * -(-layout.columns // run.mesh.column_shards)
        update: Any = replace(run.phases.update, tokens_per_microbatch=max(1, tokens))  # type: ignore
        fewer = replace(run, phases=replace(run.phases, update=update))
        # The rows stay as they are if they are one, or a group that stays together.
        if replace(estimate, run=fewer).layout.rows != layout.rows:
            return "update.tokens_per_microbatch", tokens, fewer
    if not run.can_offload:
        return None
    optimizer: Any = replace(run.optimizer, offload=True)  # type: ignore[type-var]
    state = replace(run.state, optimizer_state=of_host(run.state.optimizer_state))
    return "optimizer.offload", "true", replace(run, optimizer=optimizer, state=state)


def larger_change(estimate: StepEstimate, memory: float, phase: str) -> str:
    """Returns larger changes: a division of rows, adapters, shorter responses, or more devices."""
    run, shape, cp = estimate.run, estimate.run.mesh.devices.shape, estimate.run.mesh.column_shards
    chips = math.ceil(run.mesh.size * sum(estimate.memory[phase].values()) / memory)
    words = []
    heads = (c := run.policy.decoder.config).heads
    along_tp = math.gcd(8, shape["fsdp"], heads, c.num_kv_heads, c.experts)
    if (
        along_tp > 1 == shape["tp"]
        and estimate.memory[phase].get("gathered parameters", 0) > memory / 4
    ):
        words.append(f"layers that devices divide (mesh.fsdp=-1 mesh.tp={along_tp})")
    if phase == "update" and shape["fsdp"] % 2 == heads % (2 * cp * shape["tp"]) == 0:
        words.append(f"devices that share a row (mesh.cp={2 * cp})")
    if not run.policy.frozen:
        words.append("adapters (model.lora.rank=16, with model.param_dtype=bfloat16 or nf4)")
    elif not any(x.dtype == "uint8" for x in jax.tree.leaves(run.policy.frozen)):
        words.append("a base in 4 bits (model.param_dtype=nf4)")
    words.append(f"a shorter max_response_tokens, or {chips} chips like these")
    return ", ".join(words)


def show_estimate(report: dict[str, Any]) -> None:
    """Prints an estimate as a table."""
    phases, step = report["phases"], report["step"]
    totals = {phase: sum(parts.values()) for phase, parts in phases.items()}
    name, unit = unit_of(max(totals.values()))
    out = VisibleConsole(width=max(120, VisibleConsole().width))  # the width of the table
    microbatches = f"{step['microbatches']} microbatches of {step['rows_of_microbatch']} rows"
    out.print(f"{heading(report)}, {microbatches}")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(name)
    for phase in phases:
        table.add_column(phase, justify="right")
    parts = dict.fromkeys(part for each in phases.values() for part, size in each.items() if size)
    rows = [(part, [each.get(part, 0) for each in phases.values()]) for part in parts]
    for part, sizes in [*rows, ("total", list(totals.values()))]:
        table.add_row(part, *(f"{size / unit:,.2f}" if size else "" for size in sizes))
    out.print(table)
    if base := report["base"]:
        out.print(
            f"base: {base['bytes'] / base['parameters']:.2f} bytes a parameter, "
            f"{base['bytes_of_layers'] / base['parameters_of_layers']:.2f} without embedding and "
            f"head ({base['parameters'] / 1e9:.2f}B and {base['parameters_of_layers'] / 1e9:.2f}B)"
        )
    for phase, seconds in report["seconds_at_least"].items():
        if seconds:
            longest = max(seconds, key=lambda part: seconds[part])
            each = ", ".join(f"{part} {value:,.2f} s" for part, value in seconds.items() if value)
            out.print(f"{phase}: at least {seconds[longest]:,.2f} s, by its {longest} ({each})")
    if faster := report["faster_sampling"]:
        out.print("sampling with mesh.sampling_tp={}: at least {:,.2f} s".format(*faster))
    if (seconds := report["update_without_recomputed_layers"]) is not None:
        out.print(f"update with model.remat=elementwise, which fits: at least {seconds:,.2f} s")
    out.print("An estimate from shapes, per chip, for responses of full length.")
    if report["fits"]:
        out.print(report["verdict"])
