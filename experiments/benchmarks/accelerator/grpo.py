"""Whole steps of a run in this process, measured by phase."""

import statistics
from dataclasses import dataclass, replace
from typing import Any

from experiments.benchmarks.accelerator.rates import peak_gib, slowest_to_compile
from experiments.benchmarks.accelerator.result import Result
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.loop.stopwatch import compilation
from rl4p.runs.build import build

WARM_UP, MEASURED = 2, 3
STEPS = WARM_UP + MEASURED


@dataclass
class Watched:
    """A collector that records the peak of memory after each rollout."""

    collector: Any
    peak: float | None = None

    def collect(self, state: Any) -> Any:
        collected = self.collector.collect(state)
        self.peak = peak_gib()
        return collected


def measure_steps(words: list[str], result: Result, **columns: Any) -> None:
    """Runs `STEPS` steps of a configuration, and adds a row with the medians after warm-up.

    Raises:
      SystemExit: a step had no gradient.
    """
    experiment = build(compose(words))
    watched = Watched(experiment.loop.collector)
    rows, compiled, peaks = [], [compilation()], []
    for info in train(replace(experiment.loop, collector=watched), experiment.state):
        rows.append(info.metrics)
        compiled.append(compilation())
        peaks.append((watched.peak, peak_gib()))
        if len(rows) == 1:
            first = compiled[1].since(compiled[0])
            result.add(
                **columns,
                first_step=rows[0]["time/step"],
                programs_of_step_1=first.programs,
                from_cache=first.from_cache,
                compilation_of_step_1=first.seconds,
                slowest_to_compile=slowest_to_compile(),
            )
    experiment.loop.collector.close()

    def median(name: str) -> float:
        return statistics.median(row[name] for row in rows[WARM_UP:])

    sequences = len(info.episodes)
    tokens = sequences * median("rollout/response_tokens")
    norms = [row["update/grad_norm"] for row in rows]
    result.more(
        sequences=sequences,
        seconds=median("time/step"),
        rollout=median("time/rollout"),
        update=median("time/update"),
        rest=median("time/step") - median("time/rollout") - median("time/update"),
        response_tokens_per_second=tokens / median("time/step"),
        programs_after_step_2=compiled[-1].since(compiled[WARM_UP]).programs,
        peak_gib_after_rollout=peaks[0][0] or "not reported",
        peak_gib=peaks[-1][1] or "not reported",
        smallest_gradient_norm=min(norms),
        logprob_gap_mean=median("rollout/logprob_gap_mean"),
    )
    if not min(norms) > 0:
        raise SystemExit(f"A step had no gradient: {norms}.")
