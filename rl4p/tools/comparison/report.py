"""The report of a comparison: compare.json, CSV files, and the tables on the terminal."""

import csv
import io
import math
from typing import Any

from rich.table import Table

from rl4p.base.console import VisibleConsole
from rl4p.base.terminal import visible
from rl4p.tools.comparison import words
from rl4p.tools.comparison.charts import curve, metrics_of_charts
from rl4p.tools.comparison.measures import AREA, LAST, LAST_5, QuestionDifference, costs
from rl4p.tools.comparison.statistics import LEVEL, Comparison


def document(comparison: Comparison) -> dict[str, Any]:
    """Returns the content of compare.json; a number that is unknown is null."""
    names = [result.group.name for result in comparison.results]
    groups = []
    for result in comparison.results:
        means = {"area": result.area, "last_5": result.last_5} | vars(result.costs)
        groups.append(
            {
                "name": result.group.name,
                "overrides": list(result.group.overrides),
                "runs": [run.name for run in result.group.runs],
                "metric": comparison.metric.name,
                "values": {str(seed): value for seed, value in result.values.items()},
                "mean": result.mean,
                "iqm": result.iqm,
                "interval": result.interval,
                "value": comparison.metric.value.name,
                **{key: x if math.isfinite(x) else None for key, x in means.items()},
            }
        )
    return {
        "groups": groups,
        "differences": [
            {
                "better": names[each.better],
                "worse": names[each.worse],
                "difference": each.difference.estimate,
                "interval": each.difference.interval,
                "p_value": each.difference.p_value,
                "pairs": each.difference.pairs,
                "probability_of_improvement": each.difference.probability,
                "supported": each.supported,
                "detectable_difference": each.difference.detectable,
                "seeds_needed": each.difference.seeds_needed,
                "questions": vars(each.questions)
                if isinstance(each.questions, QuestionDifference)
                else None,
                "questions_not_paired": each.questions if isinstance(each.questions, str) else None,
            }
            for each in comparison.compared
        ],
        "left_out": [vars(run) for run in comparison.left_out],
        "sentences": words.sentences(comparison),
    }


def tables(comparison: Comparison) -> dict[str, str]:
    """Returns the CSV files by name, for spreadsheets and for pandas.

    * runs.csv has a row for each run: three numbers of the metric, and the costs.
    * groups.csv has a row for each group: the statistics of the number that counts, and the means
      of the costs.
    * curves.csv has a row for each point of each chart: the middle and the range of the seeds.
    """
    metric = comparison.metric
    rows: dict[str, list[dict[str, Any]]] = {"runs.csv": [], "groups.csv": [], "curves.csv": []}
    for result in comparison.results:
        name = result.group.name
        for run in result.group.runs:
            head = {"group": name, "run": run.name, "seed": run.seed, "metric": metric.name}
            numbers = {x.name: metric.of(run, x) for x in (LAST, LAST_5, AREA, metric.value)}
            rows["runs.csv"].append(head | numbers | vars(costs(run)))
        low, high = result.interval or (None, None)
        rows["groups.csv"].append(
            {
                "group": name,
                "seeds": len(result.values),
                "metric": metric.name,
                "value": metric.value.name,
                "iqm": result.iqm,
                "interval_low": low,
                "interval_high": high,
                "mean": result.mean,
                **vars(result.costs),
            }
        )
        for each in metrics_of_charts(metric).values():
            if (line := curve(result.group.runs, each)) is None:
                continue
            columns = {**line.x, "iqm": line.middle, "lowest": line.low, "highest": line.high}
            rows["curves.csv"] += [
                {"group": name, "metric": each.name} | dict(zip(columns, point, strict=True))
                for point in zip(*columns.values(), strict=True)
            ]
    files = {}
    for name, lines in rows.items():
        text = io.StringIO()
        writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        files[name] = text.getvalue()
    return files


def print_comparison(comparison: Comparison) -> None:
    """Prints the tables, the sentences, the runs that are left out, and the path of the page."""
    statistics, means = Table(box=None, padding=(0, 2, 0, 0)), Table(box=None, padding=(0, 2, 0, 0))
    over_questions = Table(box=None, padding=(0, 2, 0, 0))
    columns = ("IQM", f"{LEVEL:.0%} interval", "mean", "to the best", "P(best >)", "seeds")
    of_questions = ("to the best", f"{LEVEL:.0%} interval", "questions")
    costs_of_run = ("time", "compilation", "tokens", "device hours", "truncated", "ESS")
    headings = {statistics: columns, means: costs_of_run, over_questions: of_questions}
    for table, names in headings.items():
        table.add_column("group", overflow="fold")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
    for index, result in enumerate(comparison.results):
        name, spent = visible(result.group.name, keep=""), result.costs
        gap, chance = "best", ""
        if (to_best := comparison.to_best(index)) is not None:
            difference, supported = to_best
            gap = words.number(difference.estimate, sign=True) + "*" * supported
            chance = f"{1 - difference.probability:.2f}"
        if paired := comparison.questions_to_best(index):
            over_questions.add_row(
                name,
                words.number(paired.estimate, sign=True),
                words.span(paired.interval, sign=True),
                f"{paired.questions:,}",
            )
        statistics.add_row(
            name,
            words.number(result.iqm),
            words.span(result.interval),
            words.number(result.mean),
            gap,
            chance,
            str(len(result.values)),
        )
        means.add_row(
            name,
            words.duration(spent.seconds),
            words.duration(spent.compile_seconds),
            words.amount(spent.tokens),
            words.number(spent.device_hours),
            words.share(spent.truncated),
            words.number(spent.effective),
        )
    if any(each.supported for each in comparison.compared):
        statistics.caption = "* the seeds support this difference"
        statistics.caption_justify = "left"
    out = VisibleConsole()
    out.print(f"The {comparison.metric.counted} of the runs")
    out.print(statistics)
    if over_questions.row_count:
        out.print("Over the same questions, in pairs")
        out.print(over_questions)
    if comparison.has_costs:
        out.print("The means of a run")
        out.print(means)
    for sentence in words.sentences(comparison):
        out.print(sentence)
    for run in comparison.left_out:
        out.print(f"  {run.name}: {run.reason}")
    out.print(str(comparison.folder / "index.html"), soft_wrap=True)


def markdown(comparison: Comparison) -> str:
    """Returns the groups with their statistics as a table in Markdown."""
    lines = [
        f"The {comparison.metric.counted}, by group:",
        "",
        f"| group | IQM | {LEVEL:.0%} interval | mean | seeds |",
        "|---|---|---|---|---|",
    ]
    for result in comparison.results:
        name = visible(result.group.name, keep="").replace("`", "'").replace("|", "\\|")
        numbers = words.number(result.iqm), words.span(result.interval), words.number(result.mean)
        lines.append(f"| `{name}` | {' | '.join(numbers)} | {len(result.values)} |")
    return "\n".join(lines)
