"""Compares runs: which was better, and is the difference real?

    python -m rl4p.compare run=A,B [metric=NAME] [value=last_5] [out=FOLDER]
    python -m rl4p.compare outputs/sweeps/DATE/TIME
    python -m rl4p.compare experiment=NAME tracker.uri=URI    an MLflow experiment, without folders

Words
  run=FOLDER        a run; run=latest is the run of outputs/runs that was started last. A folder of
                    a sweep gives all its runs; A,B and a path for each are several
  experiment=NAME   an experiment of MLflow, instead of folders
  tracker.uri=URI   the store of the experiment; without it MLFLOW_TRACKING_URI
  metric=NAME       a metric of metrics.jsonl; higher is better. Without it pass@1 on the held-out
                    prompts, the mean of the tasks that all runs have
  value=NAME        what counts of a run: last, its last value; last_5, the mean of its last five;
                    area, the area under its curve divided by the steps. Without it last
  out=FOLDER        where the result is written: in FOLDER/compare. Without it, in the folder of the
                    sweep, or else in outputs/comparisons/DATE/TIME

Runs that differ only in the seed are one group. Folders of rl4p.evaluate alone are compared as runs
are. Runs that answered the same questions have a paired difference over questions. Prints the
groups with intervals, the differences that the seeds support, and the costs. Writes
compare/index.html, a page without scripts that needs no network; compare.json; the tables runs.csv,
groups.csv and curves.csv; and the figures curve and intervals as PDF and SVG. Runs that have not
finished are named and left out.
"""

import sys
from collections.abc import Sequence

from rl4p.command import commands


def job(arguments: list[str]) -> None:
    from rl4p.tools.comparison.job import COMPARE, compare, read
    from rl4p.tools.comparison.measures import Value
    from rl4p.tools.comparison.report import print_comparison

    options = commands.read(arguments, COMPARE).options
    runs, left_out, out = read(options)
    value = Value(options.value)
    print_comparison(compare(runs, left_out, out, metric=options.metric, value=value))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return commands.run_command("rl4p.tools.comparison.job:COMPARE", __doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
