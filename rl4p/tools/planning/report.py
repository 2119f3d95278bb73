"""The job of `python -m rl4p.plan`: a table, plan.json, and the largest values that fit."""

import json
import logging
import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.table import Table

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError, RunError
from rl4p.command.commands import is_document_with, refuse_other_file
from rl4p.configuration import instantiate
from rl4p.configuration.slices import GIB, Chip
from rl4p.distributed.mesh import Mesh
from rl4p.protocols.traits import OptimizerTraits
from rl4p.tools.planning.abstract import AbstractRun, abstract_run
from rl4p.tools.planning.costs import (
    Cost,
    advice,
    bound_of_step,
    cost,
    heading,
    sizes_of,
    unit_of,
    wider_sampling,
)
from rl4p.tools.planning.estimate_report import estimate, show_estimate
from rl4p.tools.planning.programs import (
    Program,
    programs,
    rollout,
    slots_of,
    unplanned,
    updates,
    weights_for_sampling,
)
from rl4p.tools.planning.topology import DescribedMesh, memory_of, planned, reports_memory


def search(config: DictConfig, mesh: Mesh, memory: float) -> dict[str, int | None]:
    """Returns, by key, the largest power of two that fits; None if no allowed value fits."""
    run, chip = abstract_run(config, mesh), memory_of(mesh)[0]
    B, T = run.sequences, run.prompt_columns + run.response_tokens
    positions = run.policy.decoder.config.max_positions

    def fits(key: str, of: Callable[[AbstractRun], list[Program]], value: int) -> bool:
        changed = deepcopy(config)
        OmegaConf.update(changed, key, value)
        each = of(abstract_run(changed, mesh))
        return all(cost(program, chip, mesh).total <= memory for program in each)

    tokens, context = "update.tokens_per_microbatch", "max_response_tokens"
    sizes = {
        tokens: largest(
            partial(fits, tokens, updates),
            run.phases.update.tokens_per_microbatch,
            least=1,
            most=B * T,
        ),
        context: largest(
            partial(fits, context, programs),
            run.response_tokens,
            least=1,
            most=positions - config.max_prompt_tokens,
        ),
    }
    slots = slots_of(run)
    if slots is not None:
        sizes["rollout.slots"] = largest(
            partial(fits, "rollout.slots", lambda run: [*weights_for_sampling(run), *rollout(run)]),
            slots,
            least=run.policy.sampling_mesh.row_shards,
            most=B,
        )
    return sizes


def largest(fits: Callable[[int], bool], start: int, *, least: int, most: int) -> int | None:
    """Returns the largest power of two that fits, assuming that all smaller ones fit too.

    The search doubles or halves from the configured value, because each trial costs compilations
    and the configured value is usually close. `None` means that no value down to `least` fits.
    """
    value = 1 << (max(1, min(start, most)).bit_length() - 1)
    if fits(value):
        while 2 * value <= most and fits(2 * value):
            value *= 2
        return value
    while value // 2 >= least:
        value //= 2
        if fits(value):
            return value
    return None


log = logging.getLogger(__name__)


def plan(config: DictConfig) -> dict[str, Any]:
    """Plans a run and returns the content of plan.json."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    made = is_document_with("verdict", "fits")
    refuse_other_file(folder, "plan", made, file=folder / "plan.json")
    started = time.perf_counter()
    if config.plan.estimate:
        report, print_report = estimate(config), show_estimate
    else:
        if not config.plan.all_widths:
            # The widest loop over microbatches needs the most memory; the others need not compile.
            config = deepcopy(config)
            OmegaConf.update(config, "update.microbatch_widths", 1, force_add=True)
        if config.mesh.topology is not None:
            jax.config.update("jax_exec_time_optimization_effort", config.plan.effort)
            jax.config.update("jax_memory_fitting_effort", config.plan.effort)
        run, chip, memory = described(config, planned(instantiate(config.mesh)))
        costs = costs_of(run, chip)
        report = summary(run, chip, memory, costs)
        if config.plan.search:
            report["largest"] = search(config, run.mesh, memory)
        print_report = partial(show, costs=costs)
    report["seconds"] = time.perf_counter() - started
    (folder / "plan.json").write_text(json.dumps(report, indent=2) + "\n")
    print_report(report)
    if not report["fits"]:
        raise RunError(report["verdict"])
    return report


def refuse_what_does_not_fit(config: DictConfig) -> None:
    """Checks that a run fits on its devices, unless their memory is neither reported nor set.

    The check compiles all programs of the run, which then finds them in the cache.
    """
    mesh = instantiate(config.mesh)
    if config.plan.memory_gib is None and not reports_memory(mesh):
        log.warning("plan.check: these devices do not report their memory, so nothing was checked.")
        return
    run, chip, memory = described(deepcopy(config), mesh)  # the run itself chooses what is null
    plan = summary(run, chip, memory, costs_of(run, chip))
    if not plan["fits"]:
        raise InputError(f"{plan['verdict']} Set plan.check=false to run it anyway.")


def described(config: DictConfig, mesh: Mesh) -> tuple[AbstractRun, Chip, float]:
    """Returns the run, its chip, and the bytes of a chip that programs may use."""
    run = abstract_run(config, mesh)
    chip, memory = memory_of(mesh)
    offloads = OptimizerTraits.read(run.optimizer).offload or config.reference.offload
    if offloads and isinstance(mesh, DescribedMesh) and chip.platform == "gpu":
        raise InputError(
            "optimizer.offload=true and reference.offload=true cannot be compiled for absent GPUs: "
            "add estimate=true."
        )
    if config.plan.memory_gib is not None:
        memory = config.plan.memory_gib * GIB
    return run, chip, memory


def costs_of(run: AbstractRun, chip: Chip) -> list[Cost]:
    """Returns the costs of all programs, each for the mesh that runs it."""
    return [
        cost(program, chip, run.policy.sampling_mesh if program.sampled else run.mesh)
        for program in programs(run)
    ]


def summary(run: AbstractRun, chip: Chip, memory: float, costs: list[Cost]) -> dict[str, Any]:
    worst = max(costs, key=lambda each: each.total)
    fits = memory == 0 or worst.total <= memory
    name, unit = unit_of(worst.total)
    use = f"{worst.total / unit:,.2f} of {memory / unit:,.2f} {name} per chip, in {worst.phase}"
    if fits:
        verdict, change = f"It fits: {use}.", None
    else:
        change = advice(run, costs, memory)
        verdict = f"It does not fit: {use}. The most helpful change: {change}."
    if left_out := unplanned(run):
        verdict += f" Not included in the plan: {', '.join(left_out)}."
    report = sizes_of(run, chip, memory)
    report["step"] |= {
        "tokens_per_microbatch": run.phases.update.tokens_per_microbatch,
        "microbatch_widths": run.phases.update.microbatch_widths,
    }
    return report | {
        "fits": fits,
        "verdict": verdict,
        "unplanned": left_out,
        "change": change,
        "wider_sampling": wider_sampling(run),
        "recomputes_layers": run.policy.decoder.remat == "layer",
        "phases": [asdict(each) for each in costs],
    }


def show(plan: dict[str, Any], costs: list[Cost]) -> None:
    """Prints the plan as a table."""
    name, unit = unit_of(max(each.total for each in costs))

    def written(size: float) -> str:
        return f"{size / unit:,.2f}"

    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = (name, "other", "arguments", "outputs", "temporary", "aliased", "total")
    more = ("TFLOP", "sent", "time >=", "compiled")
    for column in (*columns, *more):
        table.add_column(column, justify="left" if column == name else "right")
    for each in costs:
        sizes = (each.beside, each.arguments, each.outputs, each.temporaries, each.aliased)
        seconds = "" if each.seconds_at_least is None else f"{each.seconds_at_least:,.2f} s"
        sent = sum(traffic.sent for traffic in each.collectives.values())
        table.add_row(
            each.phase,
            *map(written, (*sizes, each.total)),
            f"{each.flops / 1e12:,.1f}",
            written(sent),
            seconds,
            f"{each.compile_seconds:.0f} s",
        )
    kinds = {
        (each.phase, kind): traffic
        for each in costs
        for kind, traffic in each.collectives.items()
        if traffic.sent >= 0.005 * unit
    }
    out = VisibleConsole(width=max(120, VisibleConsole().width))  # the width of the table
    out.print(heading(plan, f" ({written(plan['memory'])} {name} each)"))
    out.print(table)
    for (phase, kind), traffic in kinds.items():
        out.print(
            f"{phase}: {kind} {traffic.count:,} times, {written(traffic.bytes)} {name} in total, "
            f"{written(traffic.sent)} sent per chip"
        )
    out.print(
        "Bytes are per chip, TFLOP for all chips, for responses of full length. `other`: arrays in "
        "memory besides the arguments. `time >=`: a bound by peak FLOP/s, bandwidth and links."
    )
    step, devices = plan["step"], math.prod(plan["mesh"].values())
    tokens = step["prompts"] * step["group_size"] * step["response_tokens"]
    recomputes = plan["fits"] and plan["recomputes_layers"]
    if sentence := bound_of_step(costs, tokens, devices, plan["wider_sampling"], recomputes):
        out.print(sentence)
    for key, value in plan.get("largest", {}).items():
        out.print(f"the largest value that fits: {key}={value}")
    if plan["fits"]:
        out.print(plan["verdict"])
