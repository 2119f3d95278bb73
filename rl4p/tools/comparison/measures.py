"""What is measured of a run: the value of the metric, its costs, and its curves.

Costs are sums over the steps of the record: `time/step` has no evaluations and no start. The first
run on a machine compiles for all later ones, so compilation is a cost of its own. A metric that a
run does not record is nan.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl4p.base.errors import InputError
from rl4p.runs.pictures import in_words
from rl4p.tools.runs import PASS_AT_1, Run, refuse_unrecorded

ENTROPY, GAP = "update/entropy", "rollout/logprob_gap_max"
LENGTH, TRUNCATED, EFFECTIVE = "rollout/response_tokens", "rollout/truncated", "update/ess"
REWARD, SECONDS, SPEED = "reward/mean", "time/step", "rollout/tokens_per_second"
COMPILE, EVALUATION_COMPILE = "time/compile", "time/evaluation_compile"
CURVES = (REWARD, LENGTH, ENTROPY, GAP, TRUNCATED)  # below the curve of the metric
RECORDED = (*CURVES, EFFECTIVE, SECONDS, COMPILE, EVALUATION_COMPILE, SPEED, "time/rollout")


@dataclass(frozen=True)
class Value:
    """The number that stands for the curve of a run.

    * ``last`` is the last value.
    * ``last_K`` is the mean of the last K values. Fewer values have none.
    * ``area`` is the area under the curve, in trapezoids, divided by the steps from the first value
      to the last: the mean height of the curve.
    """

    name: str = "last"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"last|area|last_[1-9]\d*", self.name):
            raise InputError(f"value={self.name} is none: write value=last, last_5 or area.")

    def of(self, series: Mapping[int, float]) -> float:
        """Returns the number of a curve, of which `series` has the value at each step."""
        steps, values = np.array(list(series), float), np.array(list(series.values()), float)
        if self.name != "area":
            count = int(self.name.partition("_")[2] or 1)
            return float(values[-count:].mean()) if len(values) >= count else math.nan
        if len(values) < 2:
            return float(values[-1]) if len(values) else math.nan
        return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))

    def words(self, metric: str) -> str:
        """Returns the number of a metric in words."""
        if self.name == "area":
            return f"area under the curve of {metric}"
        count = self.name.partition("_")[2]
        return f"mean of the last {count} values of {metric}" if count else f"last {metric}"


LAST, LAST_5, AREA = Value("last"), Value("last_5"), Value("area")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The metric that is compared: one metric, or the mean of several tasks."""

    names: tuple[str, ...]  # the metrics
    # The metrics of tasks that only some runs have, which are not compared.
    others: tuple[str, ...] = ()
    value: Value = LAST  # the number of a run that counts

    @property
    def name(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"mean of {', '.join(self.names)}"

    @property
    def counted(self) -> str:
        """The name with the number that counts: "last reward/mean"."""
        return self.value.words(self.name)

    @property
    def words(self) -> str:
        """The metric in words, for pictures."""
        return in_words(*self.names)

    @property
    def is_share(self) -> bool:
        """Returns whether the metric is a share of the prompts, between 0 and 1."""
        return all("/pass_at_" in name for name in self.names)

    def series(self, run: Run) -> dict[int, float]:
        """Returns the value at each step that recorded all of `names`."""
        return {
            int(row["step"]): sum(row[name] for name in self.names) / len(self.names)
            for row in run.rows
            if all(name in row for name in self.names)
        }

    def of(self, run: Run, value: Value | None = None) -> float:
        """Returns the number of a run that counts; nan if the run never recorded the metric."""
        return (value or self.value).of(self.series(run))

    def resolution(self, runs: Sequence[Run]) -> float:
        """Returns the distance of two neighbouring values of pass@1, which counts prompts."""
        if not all(name.endswith(PASS_AT_1) for name in self.names):
            return 0.0
        names = [name.removesuffix(PASS_AT_1) + "/prompts" for name in self.names]
        prompts = [row[name] for run in runs for row in run.rows for name in names if name in row]
        return 1 / (max(prompts) * len(names)) if prompts and max(prompts) > 0 else 0.0


def chosen_metric(runs: Sequence[Run], name: str | None, value: Value = LAST) -> Metric:
    """Returns the metric with this name; None is pass@1 of the tasks that all runs have.

    A run without any task does not count: the comparison leaves it out.
    """
    recorded = [{key for row in run.rows for key in row} - {"step"} for run in runs]
    everything = sorted(set().union(*recorded))
    if name is not None:
        refuse_unrecorded(name, everything)
        return Metric(names=(name,), value=value)
    tasks = [
        {key for key in keys if key.startswith("eval/") and key.endswith(PASS_AT_1)}
        for keys in recorded
    ]
    tasks = [each for each in tasks if each]
    if not tasks:
        names = ", ".join(everything[:40]) or "no metrics"
        raise InputError(f"The runs have no eval/*/pass_at_1: set metric= to one of {names}.")
    common, all_tasks = set.intersection(*tasks), set.union(*tasks)
    if not common:
        counts = [f"{key} in {sum(key in each for each in tasks)}" for key in sorted(all_tasks)]
        raise InputError(
            f"The {len(tasks)} runs have no common task ({', '.join(counts)}): choose metric=NAME,"
            f" such as metric={REWARD}."
        )
    return Metric(
        names=tuple(sorted(common)), others=tuple(sorted(all_tasks - common)), value=value
    )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs and the health of a run, or their means over the runs of a group."""

    seconds: float  # the time of all steps, without compilation
    compile_seconds: float  # the time of compilation in all steps and evaluations
    tokens: float  # the sampled tokens
    # device_hours, compile_device_hours: these times multiplied by the number of devices
    device_hours: float
    compile_device_hours: float
    truncated: float  # the mean share of responses that reached the limit
    effective: float  # the mean effective sample size, as a share of the samples; 1 is on-policy


def costs(run: Run) -> Costs:
    steps = [row for row in run.rows if row["step"] > 0]
    seconds = float(np.sum(seconds_of_steps(run)))
    compiled = sum(row.get(COMPILE, 0.0) + row.get(EVALUATION_COMPILE, 0.0) for row in run.rows)
    return Costs(
        seconds=seconds,
        compile_seconds=compiled,
        tokens=float(np.sum(tokens(run))),
        device_hours=seconds * run.devices / 3600,
        compile_device_hours=compiled * run.devices / 3600,
        truncated=_mean([row[TRUNCATED] for row in steps if TRUNCATED in row]),
        effective=_mean([row[EFFECTIVE] for row in steps if EFFECTIVE in row]),
    )


def mean_costs(runs: Sequence[Run]) -> Costs:
    each = [vars(costs(run)) for run in runs]
    return Costs(**{name: _mean([values[name] for values in each]) for name in each[0]})


def seconds_of_steps(run: Run) -> list[float]:
    """Returns the time of each step without compilation."""
    return [row.get(SECONDS, 0.0) - row.get(COMPILE, 0.0) for row in run.rows if row["step"] > 0]


def tokens(run: Run) -> np.ndarray:
    """Returns the sampled tokens of each step.

    The measured speed counts the sequences of the step; a rollout without one samples
    `prompts_per_step` times `group_size`.
    """
    sequences = run.config.get("prompts_per_step", 0) * run.config.get("group_size", 0)
    return np.array(
        [
            row[SPEED] * row["time/rollout"]
            if SPEED in row and "time/rollout" in row
            else row.get(LENGTH, 0.0) * sequences
            for row in run.rows
            if row["step"] > 0
        ]
    )


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
