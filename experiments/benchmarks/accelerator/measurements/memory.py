"""The memory that `rl4p.plan` expects of the steps of `step`, beside what they used."""

from pathlib import Path

from experiments.benchmarks.accelerator.measurements.step import words
from experiments.benchmarks.accelerator.rates import GIB
from experiments.benchmarks.accelerator.result import Result, read_json
from rl4p.configuration import compose, instantiate
from rl4p.tools.planning.report import costs_of, described


def measure(case: str, result: Result, folder: Path) -> None:
    config = compose(words(case, folder, tiny=result.tiny))
    run, chip, memory = described(config, instantiate(config.mesh))
    costs = costs_of(run, chip)
    for each in costs:
        result.add(
            program=each.phase,
            other_gib=each.beside / GIB,
            arguments_gib=each.arguments / GIB,
            outputs_gib=each.outputs / GIB,
            temporaries_gib=each.temporaries / GIB,
            aliased_gib=each.aliased / GIB,
            total_gib=each.total / GIB,
            compile_seconds=each.compile_seconds,
        )
    measured = read_json(result.path.with_name(result.path.name.replace("memory-", "step-"))).get(
        "rows", []
    )
    of_update = [each.total for each in costs if each.phase == "update"]
    of_rollout = [each.total for each in costs if each.phase != "update"]
    for planned, name in ((of_rollout, "peak_gib_after_rollout"), (of_update, "peak_gib")):
        for row in measured:
            peak = row[name]
            ratio = max(planned) / GIB / peak if isinstance(peak, float) else peak
            result.add(
                program=f"largest until then, {name}",
                total_gib=max(planned) / GIB,
                measured_gib=peak,
                planned_to_measured=ratio,
            )
    result.add(program="memory for programs", total_gib=memory / GIB)
