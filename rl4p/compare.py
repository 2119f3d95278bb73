"""Compares runs: which was better, and is the difference real?

    python -m rl4p.compare sweep=FOLDER                       the runs of a sweep
    python -m rl4p.compare runs=[A,B,...]                     folders of runs or of sweeps
    python -m rl4p.compare experiment=NAME tracker.uri=URI    an MLflow experiment, without folders
                           [metric=NAME] [out=FOLDER]

Runs that differ only in the seed are one group. Prints the groups with intervals, the differences
that the seeds support, and the costs. Writes FOLDER/compare/index.html, a page without scripts that
needs no network, and FOLDER/compare/compare.json. FOLDER is the sweep, or `out`; without either it
is outputs/comparisons/DATE/TIME.

`metric` is any metric of metrics.jsonl; its last value counts, and a higher one is better. The
default is pass@1 on the held-out prompts, the mean of the tasks if there are several. Runs that
have not finished are named and left out.
"""

import sys
from collections.abc import Sequence

from rl4p.configuration.job_options import run_job


def job(arguments: list[str]) -> None:
    from rl4p.runs.comparison.report import print_comparison, write
    from rl4p.runs.comparison.sources import parsed, read

    given = parsed(arguments)
    runs, left_out, out = read(given)
    print_comparison(write(runs, left_out, out, metric=given.get("metric")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    return run_job(__doc__ or "", job, arguments)


if __name__ == "__main__":
    sys.exit(main())
