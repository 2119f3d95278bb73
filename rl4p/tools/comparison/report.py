"""The report of a comparison: index.html, compare.json, and the tables on the terminal."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError, RunError
from rl4p.base.terminal import visible, write
from rl4p.command.commands import is_document_with, is_page_of, refuse_other_file
from rl4p.configuration.yaml_file import read_yaml
from rl4p.runs.record import replace_file
from rl4p.runs.tracker.sweep import attach_comparison
from rl4p.tools.comparison import paper, words
from rl4p.tools.comparison.measures import LAST, Value
from rl4p.tools.comparison.page import page
from rl4p.tools.comparison.runs import LeftOut, Run, read_folders
from rl4p.tools.comparison.statistics import LEVEL, Comparison, analysed
from rl4p.tools.comparison.tables import tables

BEST = "optimization_results.yaml"  # which the Optuna sweeper writes


def compare(
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    out: Path,
    *,
    metric: str | None = None,
    value: Value = LAST,
) -> Comparison:
    """Compares runs and writes index.html, compare.json, figures and tables into `out`.

    Args:
      left_out: other runs, which the comparison names.
      out: the folder for the files, which is created.
      metric: the metric to compare; None is pass@1 on the held-out prompts.
      value: the number of a run that counts.

    Raises:
      InputError: there is no finished run, none has the metric, or a file in `out` is of something
        else.
      RunError: the files cannot be written.
    """
    made = is_document_with("groups", "differences", "left_out")
    refuse_other_file(out, "compare", is_page_of("compare"), file=out / "index.html")
    refuse_other_file(out, "compare", made, file=out / "compare.json")
    comparison = analysed(runs, left_out, out, metric, value)
    files = tables(comparison) | paper.figures(comparison)
    earlier = _listed(out / "compare.json")
    for name in files:
        refuse_other_file(out, "compare", lambda path: path.name in earlier, file=out / name)
    try:
        comparison.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"Cannot create {comparison.folder}: {error.strerror}.") from error
    replace_file(comparison.page, page(comparison))
    listing = document(comparison) | {"files": sorted(files)}
    replace_file(comparison.folder / "compare.json", json.dumps(listing, indent=2) + "\n")
    for name, content in files.items():
        replace_file(comparison.folder / name, content)
    return comparison


def compare_runs(folder: Path, runs: Sequence[Path]) -> None:
    """Prints the comparison of the runs of a sweep, and writes its page.

    Args:
      folder: the folder of the sweep; the page is `compare/index.html` in it.
      runs: the folders of the runs that have finished.
    """
    if (best := best_values(folder)) is not None:
        write(best)
    if not runs:
        return
    out = folder / "compare"
    try:
        comparison = compare(*read_folders(runs), out)
        print_comparison(comparison)
        means = {result.group.name: result.iqm for result in comparison.results}
        attach_comparison(folder, out, markdown(comparison), means)
    except (InputError, RunError, OSError) as error:  # the runs have ended and are complete
        write(f"The runs of this sweep cannot be compared: {error}", sys.stderr)


def best_values(folder: Path) -> str | None:
    """Returns a line with the best values that a search found; None if it is no search."""
    try:
        best = read_yaml(folder / BEST)
        values = " ".join(f"{key}={value}" for key, value in best["best_params"].items())
        return f"best: {values} (pass@1 {best['best_value']:.3f})"
    except (InputError, OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return None


def _listed(path: Path) -> list[str]:
    """Returns the files that an earlier comparison has written."""
    if not path.is_file() or path.stat().st_size == 0:
        return []
    files = json.loads(path.read_bytes()).get("files")
    return files if isinstance(files, list) else []


def document(comparison: Comparison) -> dict[str, Any]:
    """Returns the content of compare.json; a number that is unknown is null."""
    names = [result.group.name for result in comparison.results]
    return {
        "groups": [
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
                "area": _finite(result.area),
                "last_5": _finite(result.last_5),
                **{name: _finite(value) for name, value in vars(result.costs).items()},
            }
            for result in comparison.results
        ],
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
            }
            for each in comparison.compared
        ],
        "left_out": [vars(run) for run in comparison.left_out],
        "sentences": words.sentences(comparison),
    }


def print_comparison(comparison: Comparison) -> None:
    """Prints the tables, the sentences, the runs that are left out, and the path of the page."""
    out = VisibleConsole()
    out.print(f"The {comparison.metric.counted} of the runs")
    out.print(results_table(comparison))
    out.print("The means of a run")
    out.print(costs_table(comparison))
    for sentence in words.sentences(comparison):
        out.print(sentence)
    for run in comparison.left_out:
        out.print(f"  {run.name}: {run.reason}")
    out.print(str(comparison.page), soft_wrap=True)


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


def results_table(comparison: Comparison) -> Table:
    """Returns the statistics of the metric by group."""
    table = _table("IQM", f"{LEVEL:.0%} interval", "mean", "to the best", "P(best >)", "seeds")
    for index, result in enumerate(comparison.results):
        gap, chance = "best", ""
        if (to_best := comparison.to_best(index)) is not None:
            difference, supported = to_best
            gap = words.number(difference.estimate, sign=True) + "*" * supported
            chance = f"{1 - difference.probability:.2f}"
        table.add_row(
            visible(result.group.name, keep=""),
            words.number(result.iqm),
            words.span(result.interval),
            words.number(result.mean),
            gap,
            chance,
            str(len(result.values)),
        )
    if any(each.supported for each in comparison.compared):
        table.caption = "* the seeds support this difference"
        table.caption_justify = "left"
    return table


def costs_table(comparison: Comparison) -> Table:
    """Returns the mean costs of a run by group."""
    table = _table("time", "compilation", "tokens", "device hours", "truncated", "ESS")
    for result in comparison.results:
        costs = result.costs
        table.add_row(
            visible(result.group.name, keep=""),
            words.duration(costs.seconds),
            words.duration(costs.compile_seconds),
            words.amount(costs.tokens),
            words.number(costs.device_hours),
            words.share(costs.truncated),
            words.number(costs.effective),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("group", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
