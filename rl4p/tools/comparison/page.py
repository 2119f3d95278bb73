"""The page of a comparison: one HTML file without scripts that needs no network.

A run's texts are hostile: the model writes them. The template engine escapes every value, and the
page forbids scripts and requests by its content security policy, so that a browser would not run
even one that got in. Axes and groups are switched by inputs and style sheets.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl4p.runs.pictures import COLOURS, title
from rl4p.runs.sample import Sample
from rl4p.tools.browser.beside import Row, render, side_by_side
from rl4p.tools.comparison import words
from rl4p.tools.comparison.charts import AXES, MOST_POINTS, SHOWN, figures_of_page
from rl4p.tools.comparison.groups import RunGroup
from rl4p.tools.comparison.statistics import ERROR_RATE, LEVEL, Comparison

PROMPTS, GROUPS = 6, 12  # the most whose samples are shown
LETTERS = 1500  # of a text


def page(comparison: Comparison) -> str:
    """Returns the page as HTML."""
    results = comparison.results
    names = sorted({name for result in results for name in result.group.settings})
    seed, rows = common_prompts([result.group for result in results])
    return render(
        Path(__file__).with_name("page.html"),
        **{
            name: getattr(words, name) for name in ("number", "span", "share", "amount", "duration")
        },
        heading_of_page=title(comparison.metric.words),
        heading=title(comparison.metric.value.words("values")).removesuffix(" of values"),
        method=words.method(comparison.metric),
        results=results,
        names=[result.group.name for result in results],
        to_best=[comparison.to_best(index) for index in range(len(results))],
        paired=comparison.has_questions,
        questions=[comparison.questions_to_best(index) for index in range(len(results))],
        has_costs=comparison.has_costs,
        sentences=words.sentences(comparison),
        left_out=comparison.left_out,
        colours=[COLOURS[index % len(COLOURS)] for index in range(len(results))],
        figures=figures_of_page(comparison),
        axes=AXES,
        shown=SHOWN,
        settings=[name for name in names if not name.endswith("_target_")],
        seed=seed,
        rows=rows,
        level=f"{LEVEL:.0%}",
        level_of_differences=f"{1 - ERROR_RATE:.0%}",
        most_points=MOST_POINTS,
    )


def common_prompts(groups: Sequence[RunGroup]) -> tuple[int | None, list[Row]]:
    """Returns the seed that most groups share, and samples for prompts that two of them have.

    The prompts are spread from the first steps to the last ones. Of a group the first response to a
    prompt is shown, and long texts are cut.
    """
    groups = groups[:GROUPS]
    shared = Counter(run.seed for group in groups for run in group.runs if run.samples)
    seed = max(shared, key=lambda seed: (shared[seed], -seed), default=None)
    sources = []
    for group in groups:
        first: dict[tuple[int | None, str | None], Sample] = {}
        for run in group.runs:
            for sample in run.samples if run.seed == seed else ():
                first.setdefault((sample.step, sample.id), sample)
        sources.append([cut(sample) for sample in first.values()])
    rows = side_by_side(sources, fewest=2)
    rows.sort(key=lambda row: next(iter(row.values())).step or 0)
    if len(rows) > PROMPTS:
        rows = [rows[round(i * (len(rows) - 1) / (PROMPTS - 1))] for i in range(PROMPTS)]
    return seed, rows


def cut(sample: Sample) -> Sample:
    """Returns a sample whose texts are cut to `LETTERS`."""
    texts = {"prompt": sample.prompt, "answer": sample.answer, "response": sample.response}
    for name, text in texts.items():
        if text is not None and (rest := len(text) - LETTERS) > 0:
            texts[name] = f"{text[:LETTERS]}\N{HORIZONTAL ELLIPSIS} ({rest} more characters)"
    return replace(sample, **texts)
