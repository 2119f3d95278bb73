"""The curves of a group of runs: the middle and the range of its seeds at each step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rl4p.tools.comparison.measures import CURVES, Metric, seconds_of_steps, tokens
from rl4p.tools.comparison.runs import Run
from rl4p.tools.comparison.statistics import iqm

MOST_POINTS = 120  # more are averaged, as no screen shows them
AXES = {
    "step": "steps",
    "tokens": "sampled tokens",
    "seconds": "seconds of training steps without compilation",
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The curve of one metric of a group.

    Attributes:
      x: the positions of the points on each axis of `AXES`; tokens and seconds are means of the
        seeds at that step.
      middle: the interquartile mean of the seeds; nan where no seed has a finite value.
      low, high: the lowest and the highest seed.
    """

    x: Mapping[str, np.ndarray]
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curve(runs: Sequence[Run], metric: Metric) -> Curve | None:
    """Returns the curve of the runs over the steps that all of them recorded; None without any."""
    series = [metric.series(run) for run in runs]
    steps = sorted(set.intersection(*(set(each) for each in series)))
    if not steps:
        return None
    spent = [_spent(run) for run in runs]
    columns = {
        "step": np.array(steps, float),
        "tokens": np.mean([np.interp(steps, at, used) for at, used, _ in spent], axis=0),
        "seconds": np.mean([np.interp(steps, at, used) for at, _, used in spent], axis=0),
    }
    values = [[each[step] for each in series if math.isfinite(each[step])] for step in steps]
    columns |= {
        "middle": np.array([iqm(seeds) if seeds else math.nan for seeds in values]),
        "low": np.array([min(seeds, default=math.nan) for seeds in values]),
        "high": np.array([max(seeds, default=math.nan) for seeds in values]),
    }
    columns = {name: _averaged(column) for name, column in columns.items()}
    return Curve(
        x={axis: columns[axis] for axis in AXES},
        middle=columns["middle"],
        low=columns["low"],
        high=columns["high"],
    )


def figures(metric: Metric) -> dict[str, Metric]:
    """Returns the metric of each figure by its title, the comparison's metric first."""
    others = (Metric(names=(name,)) for name in CURVES)
    return {each.words: each for each in (metric, *others)}


def _spent(run: Run) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Returns the steps of a run, from 0, with the tokens and the seconds used up to each."""
    rows = [row for row in run.rows if row["step"] > 0]
    steps = [0.0, *(row["step"] for row in rows)]
    seconds = np.cumsum([0.0, *seconds_of_steps(run)])
    return steps, np.cumsum([0.0, *tokens(run)]), seconds


def _averaged(column: np.ndarray) -> np.ndarray:
    """Returns at most `MOST_POINTS` means of neighbours; the first and the last value are kept."""
    if len(column) <= MOST_POINTS:
        return column
    inner = [part.mean() for part in np.array_split(column[1:-1], MOST_POINTS - 2)]
    return np.array([column[0], *inner, column[-1]])
