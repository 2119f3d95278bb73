"""The figures of a comparison for papers, as PDF and SVG: the curves, and the intervals."""

from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure

from rl4p.runs.pictures import (
    BLACK,
    COLOURS,
    DASHES,
    MARKERS,
    formats,
    in_print,
    legend,
    panels,
    plain,
    title,
)
from rl4p.tools.comparison.charts import AXES, SHOWN, curve
from rl4p.tools.comparison.statistics import LEVEL, SHARE, Comparison

WIDTH = 3.3  # inches: a column of a page with two
LETTERS, LINES = 26, 4  # of the name of a group
LINE = 34  # letters beside an axis


def figures(comparison: Comparison) -> dict[str, bytes]:
    """Returns the files by name: curve.pdf, curve.svg, intervals.pdf and intervals.svg."""
    with in_print():
        drawn = {"curve": curves(comparison), "intervals": intervals(comparison)}
        return {
            f"{name}.{suffix}": content
            for name, figure in drawn.items()
            for suffix, content in formats(figure).items()
        }


def curves(comparison: Comparison) -> Figure:
    """Returns the figure of the metric over the steps: the seeds' interquartile mean and range."""
    figure, (axes,) = panels(1, size=(WIDTH, 2.4), ink=BLACK)
    lows, highs = [], []
    for index, result in enumerate(comparison.results[:SHOWN]):
        line = curve(result.group.runs, comparison.metric)
        if line is None:
            continue
        colour, steps = COLOURS[index % len(COLOURS)], line.x["step"]
        axes.fill_between(steps, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            steps, line.middle, color=colour, linestyle=DASHES[index % len(DASHES)], linewidth=1.2,
            label=wrapped(result.group.label),
        )  # fmt: skip
        lows.append(np.nanmin(line.low))
        highs.append(np.nanmax(line.high))
    if comparison.metric.is_share and lows and SHARE[0] <= min(lows) <= max(highs) <= SHARE[1]:
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(AXES["step"])
    axes.set_ylabel(wrapped(title(comparison.metric.words), LINE))
    legend(axes, ink=BLACK, loc="best")
    return figure


def intervals(comparison: Comparison) -> Figure:
    """Returns the figure of the groups: their seeds, interquartile means and intervals."""
    results = comparison.results
    names = [wrapped(result.group.name) for result in results]
    lines = sum(name.count("\n") + 1 for name in names)
    size = WIDTH, 0.6 + 0.1 * len(names) + 0.14 * lines
    figure, (axes,) = panels(1, size=size, ink=BLACK)
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
