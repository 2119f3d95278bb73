"""The page of a comparison: one HTML file without scripts that needs no network.

A run's texts are hostile: the model writes them. The template engine escapes every value, and the
page forbids scripts and requests by its content security policy, so that a browser would not run
even one that got in. Axes and groups are switched by inputs and style sheets.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from rl4p.base.terminal import visible
from rl4p.runs.pictures import title
from rl4p.tools.comparison import charts, words
from rl4p.tools.comparison.charts import AXES, MOST_POINTS
from rl4p.tools.comparison.samples import side_by_side
from rl4p.tools.comparison.statistics import ERROR_RATE, LEVEL, Comparison

TEMPLATE = Path(__file__).with_name("page.html")


def shown(value: Any) -> Any:
    """Returns a value as the page has it: a text without characters that change other text."""
    return visible(value) if type(value) is str else value


def page(comparison: Comparison) -> str:
    """Returns the page as HTML."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=shown
    )
    environment.lstrip_blocks = True
    environment.globals |= {
        name: getattr(words, name) for name in ("number", "span", "share", "amount", "duration")
    }
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    results = comparison.results
    drawn, ticks = charts.strips(comparison)
    names = sorted({name for result in results for name in result.group.settings})
    html = template.render(
        metric=comparison.metric,
        title=title(comparison.metric.words),
        heading=title(comparison.metric.value.words("values")).removesuffix(" of values"),
        method=words.method(comparison.metric),
        results=results,
        to_best=[comparison.to_best(index) for index in range(len(results))],
        sentences=words.sentences(comparison),
        left_out=comparison.left_out,
        runs=sum(len(result.values) for result in results),
        styles=[charts.style(index) for index in range(len(results))],
        strips=drawn,
        ticks=ticks,
        charts=charts.charts(comparison),
        shape=charts,
        axes=AXES,
        settings=[name for name in names if not name.endswith("_target_")],
        samples=side_by_side([result.group for result in results]),
        level=f"{LEVEL:.0%}",
        level_of_differences=f"{1 - ERROR_RATE:.0%}",
        most_points=MOST_POINTS,
    )
    return html.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
