"""The curves of groups of runs, and the figures: on the page, and for papers as PDF and SVG.

A curve has the middle and the range of the seeds at each step. Matplotlib draws all figures. Those
of the page become a part of it, so that style sheets switch axes and groups without a script.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure

from rl4p.base.terminal import visible
from rl4p.runs.pictures import (
    BLACK,
    COLOURS,
    DASHES,
    GREY,
    MARKERS,
    formats,
    in_print,
    legend,
    panels,
    plain,
    title,
)
from rl4p.tools.comparison.measures import CURVES, Metric, seconds_of_steps, tokens
from rl4p.tools.comparison.statistics import LEVEL, SHARE, Comparison, iqm
from rl4p.tools.comparison.words import amount
from rl4p.tools.runs import Run

MOST_POINTS = 120  # more are averaged, as no screen shows them
AXES = {
    "step": "steps",
    "tokens": "sampled tokens",
    "seconds": "seconds of training steps without compilation",
}
SHOWN = 8  # groups in print, and at first on the page, whose legend shows the others
WIDTH = 3.3  # inches: a column of a page with two, and a phone
LETTERS, LINES = 26, 4  # of the name of a group
LINE = 34  # letters beside an axis


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The curve of one metric of a group."""

    # The positions of the points on each axis of `AXES`; tokens and seconds are means of the seeds
    # at that step.
    x: Mapping[str, np.ndarray]
    middle: np.ndarray  # the interquartile mean of the seeds; nan where no seed has a finite value
    # low, high: the lowest and the highest seed
    low: np.ndarray
    high: np.ndarray


def curve(runs: Sequence[Run], metric: Metric) -> Curve | None:
    """Returns the curve of the runs over the steps that all of them recorded; None without any."""
    series = [metric.series(run) for run in runs]
    steps = sorted(set.intersection(*(set(each) for each in series)))
    if not steps:
        return None
    values = [[each[step] for each in series if math.isfinite(each[step])] for step in steps]
    x: dict[str, list[np.ndarray]] = {"tokens": [], "seconds": []}
    for run in runs:  # what it used up to each of the steps
        at = [0.0, *(row["step"] for row in run.rows if row["step"] > 0)]
        for axis, used in (("tokens", tokens(run)), ("seconds", seconds_of_steps(run))):
            x[axis].append(np.interp(steps, at, np.cumsum([0.0, *used])))
    columns = {
        "step": np.array(steps, float),
        **{axis: np.mean(each, axis=0) for axis, each in x.items()},
        "middle": np.array([iqm(seeds) if seeds else math.nan for seeds in values]),
        "low": np.array([min(seeds, default=math.nan) for seeds in values]),
        "high": np.array([max(seeds, default=math.nan) for seeds in values]),
    }
    if len(steps) > MOST_POINTS:  # means of neighbours, between the first and the last point
        for name, column in columns.items():
            parts = np.array_split(column[1:-1], MOST_POINTS - 2)
            columns[name] = np.array([column[0], *(part.mean() for part in parts), column[-1]])
    return Curve(x={axis: columns.pop(axis) for axis in AXES}, **columns)


def metrics_of_charts(metric: Metric) -> dict[str, Metric]:
    """Returns the metric of each chart by its title, the comparison's metric first."""
    others = (Metric(names=(name,)) for name in CURVES)
    return {each.words: each for each in (metric, *others)}


def look(group: int) -> dict[str, Any]:
    """Returns the style of a line: groups differ in colour, dashes and marker."""
    return {
        "color": COLOURS[group % len(COLOURS)],
        "linestyle": DASHES[group % len(DASHES)],
        "marker": MARKERS[group % len(MARKERS)],
        "linewidth": 1.2,
        "markersize": 4,
    }


def draw_curves(
    curves: Mapping[int, Curve],
    axis: str,
    *,
    is_share: bool,
    ink: str = GREY,
    names: Sequence[str] = (),
) -> Figure:
    """Returns the figure of some groups: the seeds' interquartile means and ranges.

    Args:
      axis: a key of `AXES`.
      is_share: whether to draw the range from 0 to 1, if it contains the curves.
      names: the names of all groups, for a legend.
    """
    figure, (axes,) = panels(1, size=(WIDTH, 2.4), ink=ink)
    for index, each in curves.items():
        x, style, of_group = each.x[axis], look(index), f"g{index}"
        if not np.array_equal(each.low, each.high, equal_nan=True):
            axes.fill_between(
                x, each.low, each.high, color=style["color"], alpha=0.18, linewidth=0, gid=of_group
            )
        label = wrapped(names[index]) if names else None
        last = [int(np.flatnonzero(np.isfinite(each.middle))[-1])]
        axes.plot(x, each.middle, markevery=last, gid=of_group, label=label, **style)
    drawn = np.concatenate([part for each in curves.values() for part in (each.low, each.high)])
    if is_share and SHARE[0] <= np.nanmin(drawn) <= np.nanmax(drawn) <= SHARE[1]:
        axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_formatter(lambda position, _: amount(position))
    axes.set_xlabel(AXES[axis])
    axes.xaxis.get_major_locator().set_params(integer=axis != "seconds")
    legend(axes, ink=ink, loc="best")
    return figure


def curves_of(comparison: Comparison, metric: Metric, most: int | None = None) -> dict[int, Curve]:
    """Returns the curves of the groups that recorded finite values, by the index of the group."""
    curves = {
        index: curve(result.group.runs, metric)
        for index, result in enumerate(comparison.results[:most])
    }
    return {i: each for i, each in curves.items() if each and np.isfinite(each.middle).any()}


def intervals(comparison: Comparison, *, ink: str = BLACK) -> Figure:
    """Returns the figure of the groups: their seeds, interquartile means and intervals."""
    results = comparison.results
    names = [wrapped(result.group.name) for result in results]
    lines = sum(name.count("\n") + 1 for name in names)
    size = WIDTH, 0.6 + 0.1 * len(names) + 0.14 * lines
    figure, (axes,) = panels(1, size=size, ink=ink)
    for index, result in enumerate(results):
        colour, values = COLOURS[index % len(COLOURS)], list(result.values.values())
        axes.plot(values, [-index] * len(values), "o", color=colour, alpha=0.35, markersize=3)
        if result.interval is not None:
            axes.plot(result.interval, [-index] * 2, color=colour, linewidth=1.4)
        axes.plot([result.iqm], [-index], MARKERS[index % len(MARKERS)], color=colour, markersize=5)
    axes.set_yticks([-index for index in range(len(results))], names)
    axes.set_ylim(0.6 - len(results), 0.6)
    number = comparison.metric.value.words(comparison.metric.words)
    axes.set_xlabel(f"{wrapped(title(number), LINE)}\n(IQM, {LEVEL:.0%} interval, seeds)")
    return figure


def wrapped(text: str, letters: int = LETTERS) -> str:
    """Returns a text in a few short lines, so that it leaves room for the data."""
    return "\n".join(
        wrap(plain(text), letters, max_lines=LINES, placeholder=" \N{HORIZONTAL ELLIPSIS}")
    )


def figures_for_papers(comparison: Comparison) -> dict[str, bytes]:
    """Returns the files by name: curve.pdf, curve.svg, intervals.pdf and intervals.svg."""
    metric = comparison.metric
    names = [result.group.label for result in comparison.results]
    with in_print():
        curves = draw_curves(
            curves_of(comparison, metric, SHOWN),
            "step",
            is_share=metric.is_share,
            ink=BLACK,
            names=names,
        )
        curves.axes[0].set_ylabel(wrapped(title(metric.words), LINE), color=BLACK)
        drawn = {"curve": curves, "intervals": intervals(comparison)}
        return {
            f"{name}.{suffix}": content
            for name, figure in drawn.items()
            for suffix, content in formats(figure).items()
        }


@dataclass(frozen=True, kw_only=True)
class PageFigures:
    """The figures of the page, as SVG."""

    # The curves over each axis of `AXES`, by the title of the chart.
    charts: Mapping[str, Mapping[str, Markup]]
    intervals: Markup
    swatches: Sequence[Markup]  # the line of each group in a legend


def figures_of_page(comparison: Comparison) -> PageFigures:
    """Returns the figures of the page; metrics that no run recorded have no chart."""
    names = [result.group.name for result in comparison.results]
    with in_print(), rc_context({"svg.fonttype": "none"}):
        charts = {
            title(words): {
                axis: inline(draw_curves(curves, axis, is_share=metric.is_share), names)
                for axis in AXES
            }
            for words, metric in metrics_of_charts(comparison.metric).items()
            if (curves := curves_of(comparison, metric))
        }
        swatches = []
        for index in range(len(names)):
            figure = Figure(figsize=(0.4, 0.15), facecolor="none")
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            axes.plot([0, 1, 2], [0] * 3, markevery=[1], **look(index))
            swatches.append(inline(figure))
        return PageFigures(
            charts=charts, intervals=inline(intervals(comparison, ink=GREY)), swatches=swatches
        )


def inline(figure: Figure, names: Sequence[str] = ()) -> Markup:
    """Returns a figure as an element of the page, without addresses.

    The groups of lines get the class of their group, with its name as a tooltip. Texts and axes
    have the colour of the text around the figure.
    """
    text = formats(figure, ["svg"])["svg"].decode()
    text = text[text.index("<svg") :].replace(GREY, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>|<clipPath.*?</clipPath>", "", text, flags=re.DOTALL)
    text = re.sub(r' (xmlns(:\w+)?|clip-path)="[^"]*"| ?font-family: [^;"]*;', "", text)

    def group(match: re.Match[str]) -> str:
        return f' class="g{match[1]}"><title>{escape(visible(names[int(match[1])]))}</title>'

    text = re.sub(r' id="g(\d+)">', group, text)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # other figures of the page have them too

    def short(path: re.Match[str]) -> str:  # two decimals of a position are enough on any screen
        return re.sub(r"\s*([MLCz])\s*", r"\1", re.sub(r"(\.\d\d)\d+", r"\1", path[0]))

    return Markup(re.sub(r' d="[^"]*"', short, re.sub(r"\n\s*<", "<", text)))
