"""The comparison itself: groups of runs with their statistics and the differences between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from rl4p.base.errors import InputError
from rl4p.tools.comparison import statistics
from rl4p.tools.comparison.groups import RunGroup, grouped
from rl4p.tools.comparison.measures import (
    AREA,
    LAST,
    LAST_5,
    Costs,
    Metric,
    Value,
    chosen_metric,
    mean_costs,
)
from rl4p.tools.comparison.runs import LeftOut, Run
from rl4p.tools.comparison.statistics import Difference, Interval

SHARE = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A group with its statistics.

    Attributes:
      values: the number of the metric of each run, by seed.
      interval: the confidence interval of `iqm`; None if the seeds give none.
      area, last_5: the interquartile means of these other numbers; nan if a run has none.
      costs: the mean costs of a run.
    """

    group: RunGroup
    values: dict[int, float]
    mean: float
    iqm: float
    interval: Interval | None
    area: float
    last_5: float
    costs: Costs


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A difference between two groups.

    Attributes:
      better, worse: indices into `Comparison.results`.
      difference: better - worse.
      supported: whether the seeds support the difference, considering all comparisons.
    """

    better: int
    worse: int
    difference: Difference
    supported: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is known of some runs.

    Attributes:
      results: the groups, the one with the highest interquartile mean first.
      compared: every pair of groups.
      left_out: the runs that are not compared.
      folder: the folder of index.html and compare.json.
    """

    metric: Metric
    results: tuple[Result, ...]
    compared: tuple[Compared, ...]
    left_out: tuple[LeftOut, ...]
    folder: Path

    @property
    def page(self) -> Path:
        return self.folder / "index.html"

    def to_best(self, index: int) -> tuple[Difference, bool] | None:
        """Returns the difference of a group to the first one, and whether it is supported.

        It is None for the first group. A group may be better than the first one for equal seeds.
        """
        for each in self.compared:
            if {each.better, each.worse} == {0, index}:
                difference = each.difference
                return difference if each.better == index else difference.reversed(), each.supported
        return None


def analysed(
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    folder: Path,
    metric: str | None = None,
    value: Value = LAST,
) -> Comparison:
    """Groups runs and compares each group with each other one.

    Args:
      runs: finished runs; an equal run that comes later replaces an earlier one.
      left_out: other runs, which the comparison names.
      folder: the folder for the files of the comparison.
      metric: the name of the metric; higher values count as better. None is pass@1.
      value: the number of a run that counts.

    Raises:
      InputError: no run has finished, or none has recorded the metric.
    """
    if not runs:
        named = "; ".join(f"{run.name}: {run.reason}" for run in left_out[:5])
        raise InputError(f"None of the {len(left_out)} runs has finished. {named}.")
    chosen = chosen_metric(runs, metric, value)
    measured = [run for run in runs if math.isfinite(chosen.of(run))]
    if not measured:
        raise InputError(
            f"The {chosen.counted} is not a finite number in any of the {len(runs)} runs."
        )
    without = [
        LeftOut(name=run.name, reason=f"its {chosen.counted} is {_missing(chosen.of(run))}")
        for run in runs
        if run not in measured
    ]
    groups, repeated = grouped(measured)
    resolution = chosen.resolution(measured)
    results = sorted(
        (_result(group, chosen, resolution) for group in groups), key=lambda result: -result.iqm
    )
    pairs = [
        _compared(results, first, second, resolution)
        for first, second in combinations(range(len(results)), 2)
    ]
    answers = statistics.supported([pair.difference.p_value for pair in pairs])
    return Comparison(
        metric=chosen,
        results=tuple(results),
        compared=tuple(
            replace(pair, supported=answer) for pair, answer in zip(pairs, answers, strict=True)
        ),
        left_out=(*left_out, *without, *repeated),
        folder=folder,
    )


def _result(group: RunGroup, metric: Metric, resolution: float) -> Result:
    values = {run.seed: metric.of(run) for run in group.runs}
    numbers = np.array(list(values.values()))
    within = metric.is_share and 0 <= numbers.min() <= numbers.max() <= 1
    return Result(
        group=group,
        values=values,
        mean=float(numbers.mean()),
        iqm=statistics.iqm(numbers),
        interval=statistics.interval(
            numbers,
            resolution=resolution,
            bounds=SHARE if within else (-math.inf, math.inf),
        ),
        area=_iqm_of(group.runs, metric, AREA),
        last_5=_iqm_of(group.runs, metric, LAST_5),
        costs=mean_costs(group.runs),
    )


def _iqm_of(runs: Sequence[Run], metric: Metric, value: Value) -> float:
    numbers = [metric.of(run, value) for run in runs]
    return statistics.iqm(numbers) if all(map(math.isfinite, numbers)) else math.nan


def _compared(results: Sequence[Result], first: int, second: int, resolution: float) -> Compared:
    """Compares two groups. Paired and unpaired differences may differ in sign."""
    a, b = results[first].values, results[second].values
    difference = statistics.difference(a, b, resolution=resolution)
    if difference.estimate < 0:
        first, second, difference = second, first, difference.reversed()
    return Compared(better=first, worse=second, difference=difference, supported=False)


def _missing(value: float) -> str:
    return "missing" if math.isnan(value) else str(value)
