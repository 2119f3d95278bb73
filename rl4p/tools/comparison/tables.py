"""The tables of a comparison as CSV files, for spreadsheets and for pandas."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rl4p.tools.comparison.charts import curve, figures
from rl4p.tools.comparison.measures import AREA, LAST, LAST_5, costs
from rl4p.tools.comparison.statistics import Comparison, Result


def tables(comparison: Comparison) -> dict[str, str]:
    """Returns the files by name: runs.csv, groups.csv and curves.csv.

    * runs.csv has a row for each run: three numbers of the metric, and the costs.
    * groups.csv has a row for each group: the statistics of the number that counts, and the means
      of the costs.
    * curves.csv has a row for each point of each figure: the middle and the range of the seeds.
    """
    rows = {
        "runs.csv": [
            row for result in comparison.results for row in _rows_of_runs(comparison, result)
        ],
        "groups.csv": [_row_of_group(comparison, result) for result in comparison.results],
        "curves.csv": [
            row for result in comparison.results for row in _rows_of_curves(comparison, result)
        ],
    }
    return {name: _text(each) for name, each in rows.items()}


def _rows_of_runs(comparison: Comparison, result: Result) -> list[dict[str, Any]]:
    metric = comparison.metric
    return [
        {
            "group": result.group.name,
            "run": run.name,
            "seed": run.seed,
            "metric": metric.name,
            **{value.name: metric.of(run, value) for value in (LAST, LAST_5, AREA, metric.value)},
            **vars(costs(run)),
        }
        for run in result.group.runs
    ]


def _row_of_group(comparison: Comparison, result: Result) -> dict[str, Any]:
    low, high = result.interval or (None, None)
    return {
        "group": result.group.name,
        "seeds": len(result.values),
        "metric": comparison.metric.name,
        "value": comparison.metric.value.name,
        "iqm": result.iqm,
        "interval_low": low,
        "interval_high": high,
        "mean": result.mean,
        **vars(result.costs),
    }


def _rows_of_curves(comparison: Comparison, result: Result) -> list[dict[str, Any]]:
    rows = []
    for metric in figures(comparison.metric).values():
        line = curve(result.group.runs, metric)
        points = (
            []
            if line is None
            else zip(*line.x.values(), line.middle, line.low, line.high, strict=True)
        )
        columns = [] if line is None else [*line.x, "iqm", "lowest", "highest"]
        start = {"group": result.group.name, "metric": metric.name}
        rows += [start | dict(zip(columns, point, strict=True)) for point in points]
    return rows


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
