"""The curves of groups of runs, and the charts of the page as SVG paths.

A curve has the middle and the range of the seeds at each step. The template draws the charts and
escapes all text. Each chart has one drawing for each axis. The page shows one of them and needs no
script.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.ticker import MaxNLocator

from rl4p.runs.pictures import title
from rl4p.tools.comparison.measures import CURVES, Metric, seconds_of_steps, tokens
from rl4p.tools.comparison.runs import Run
from rl4p.tools.comparison.statistics import SHARE, Comparison, Interval, iqm
from rl4p.tools.comparison.words import amount

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


# Units of the drawing, which is as wide as a phone; the right margin is for the names of the lines.
WIDTH, HEIGHT = 360.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 78.0, 10.0, 26.0
LINE_OF_TEXT = 12.0
SHOWN = 8  # groups at first; the legend shows the others
LETTERS = 12  # of a name beside its line
FEW_POINTS = 40  # each point of such a line has a tooltip

# Groups differ in colour, dashes and marker, so that they can be distinguished without colour.
COLOURS, DASHES = 8, ("none", "7 3", "2 3", "9 3 2 3", "4 2")
MARKERS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "M-3 -3h6v6h-6z",
    "M0 -4L4 3H-4z",
    "M0 -4.5L4.5 0L0 4.5L-4.5 0z",
    "M0 4L4 -3H-4z",
    "M-4 -1.3h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z",
    "M0 -4.5L4.3 -1.4L2.6 3.6H-2.6L-4.3 -1.4z",
)


@dataclass(frozen=True, kw_only=True)
class Style:
    """The look of a group: the index of a colour of the page, dashes, and the path of a marker."""

    colour: int
    dashes: str
    marker: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A group in a drawing.

    Attributes:
      group: the index of the group.
      path, band: SVG paths of the line and of the range of the seeds.
      end: the last point, where the marker is.
      label: the height of the name; it differs from the height of `end` where names would overlap.
      points: x, y and the text of each point, if they are few.
    """

    group: int
    path: str
    band: str
    end: tuple[float, float]
    label: float
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart over one axis; the ticks are positions with their texts."""

    axis: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The drawings of one metric, one for each axis of `AXES`."""

    title: str
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The interval and the values of a group on the common scale of all strips, in percent."""

    values: tuple[float, ...]
    iqm: float
    interval: Interval | None


def style(group: int) -> Style:
    return Style(
        colour=group % COLOURS,
        dashes=DASHES[group % len(DASHES)],
        marker=MARKERS[group % len(MARKERS)],
    )


def charts(comparison: Comparison) -> list[Chart]:
    """Returns the charts of the page that have data, the metric's chart first."""
    drawn = []
    for words, metric in figures(comparison.metric).items():
        curves = {
            index: line
            for index, result in enumerate(comparison.results)
            if (line := curve(result.group.runs, metric)) is not None
            and np.isfinite(line.middle).any()
        }
        if curves:
            bounds = SHARE if metric.is_share else None
            drawings = tuple(drawing(curves, axis, bounds) for axis in AXES)
            drawn.append(Chart(title=title(words), drawings=drawings))
    return drawn


def drawing(curves: Mapping[int, Curve], axis: str, bounds: Interval | None) -> Drawing:
    """Returns the curves of some groups over one axis.

    Args:
      curves: the curves by the index of their group.
      axis: a key of `AXES`.
      bounds: the range to draw, if it contains the curves; None is their own.
    """
    x_range = 0.0, max(float(each.x[axis].max()) for each in curves.values()) or 1.0
    drawn = np.concatenate([part for each in curves.values() for part in (each.low, each.high)])
    drawn = drawn[np.isfinite(drawn)]
    ends = float(drawn.min()), float(drawn.max())
    y_range = bounds if bounds and bounds[0] <= ends[0] <= ends[1] <= bounds[1] else _widened(*ends)

    def at(x: np.ndarray) -> np.ndarray:
        return _scaled(x, x_range, LEFT, WIDTH - RIGHT)

    def height(y: np.ndarray) -> np.ndarray:
        return _scaled(y, y_range, HEIGHT - BOTTOM, TOP)

    lines = []
    for index, each in curves.items():
        seen = np.isfinite(each.middle)
        x, y = at(each.x[axis][seen]), height(each.middle[seen])
        low, high = height(each.low[seen]), height(each.high[seen])
        flat = np.array_equal(low, high)
        texts = [
            (float(px), float(py), f"{value:.4g} at {amount(position)} {AXES[axis]}")
            for px, py, value, position in zip(
                x, y, each.middle[seen], each.x[axis][seen], strict=True
            )
        ]
        lines.append(
            Line(
                group=index,
                path=_path(x, y),
                band="" if flat else _path([*x, *x[::-1]], [*high, *low[::-1]]) + "z",
                end=(float(x[-1]), float(y[-1])),
                label=float(y[-1]),
                points=tuple(texts) if len(texts) <= FEW_POINTS and index < SHOWN else (),
            )
        )
    return Drawing(
        axis=axis,
        x_ticks=tuple((float(at(np.array(tick))), amount(tick)) for tick in _ticks(*x_range, 4)),
        y_ticks=tuple(
            (float(height(np.array(tick))), f"{tick:.4g}") for tick in _ticks(*y_range, 5)
        ),
        lines=tuple(_with_labels(lines)),
    )


def strips(comparison: Comparison) -> tuple[list[Strip], list[tuple[float, str]]]:
    """Returns the strip of each group, and the ticks of their scale."""
    numbers = [
        number
        for result in comparison.results
        for number in (*result.values.values(), *(result.interval or ()))
    ]
    ends = _widened(min(numbers), max(numbers))

    def at(value: float) -> float:
        return float(_scaled(np.array(value), ends, 0.0, 100.0))

    drawn = [
        Strip(
            values=tuple(map(at, result.values.values())),
            iqm=at(result.iqm),
            interval=result.interval and (at(result.interval[0]), at(result.interval[1])),
        )
        for result in comparison.results
    ]
    return drawn, [(at(tick), f"{tick:.4g}") for tick in _ticks(*ends, 4)]


def _with_labels(lines: Sequence[Line]) -> list[Line]:
    """Moves the names of the lines that are shown at first, so that they do not overlap."""
    placed: dict[int, float] = {}
    lowest = -math.inf
    for line in sorted(
        (line for line in lines if line.group < SHOWN), key=lambda line: line.end[1]
    ):
        lowest = max(line.end[1], lowest + LINE_OF_TEXT)
        placed[line.group] = lowest
    highest = HEIGHT - BOTTOM + LINE_OF_TEXT
    for group in reversed(placed):  # from the lowest name upwards, if they reach below the chart
        highest = min(placed[group], highest - LINE_OF_TEXT)
        placed[group] = highest
    return [replace(line, label=placed.get(line.group, line.label)) for line in lines]


def _scaled(value: np.ndarray, ends: Interval, first: float, last: float) -> np.ndarray:
    return first + (value - ends[0]) / (ends[1] - ends[0]) * (last - first)


def _widened(low: float, high: float) -> Interval:
    """Returns a range with some room, also around values that differ by rounding only."""
    size = max(abs(low), abs(high))
    room = 0.04 * (high - low if high - low > 1e-9 * size else size or 1.0)
    return low - room, high + room


def _ticks(low: float, high: float, count: int) -> list[float]:
    ticks = MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    rounding = 1e-9 * (high - low)
    return [float(tick) for tick in ticks if low - rounding <= tick <= high + rounding]


def _path(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> str:
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in zip(x, y, strict=True))
