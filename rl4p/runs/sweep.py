"""The results of a sweep: what a search maximizes, its best values, and the comparison."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from rl4p.base.errors import InputError, RunError
from rl4p.base.terminal.text import write
from rl4p.configuration.yaml_file import read_yaml

BEST = "optimization_results.yaml"  # which the Optuna sweeper writes


def objective(summary: Mapping[str, Any]) -> float:
    """Returns the mean pass@1 over all tasks of the last evaluation of a run.

    It is nan for a run without an evaluation.
    """
    last = summary["evaluation"]["last"]
    scores = [float(value) for name, value in last.items() if name.endswith("/pass_at_1")]
    return fmean(scores) if scores else float("nan")


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
    from rl4p.runs.tracker.sweep import attach_comparison
    from rl4p.tools.comparison.report import compare, markdown, print_comparison
    from rl4p.tools.comparison.runs import read_folders

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
