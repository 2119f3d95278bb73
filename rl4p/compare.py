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

from rl4p.errors import InputError, RunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    from rl4p.runs.comparison.report import print_comparison, write
    from rl4p.runs.comparison.sources import parsed, read

    try:
        given = parsed(arguments)
        runs, left_out, out = read(given)
        print_comparison(write(runs, left_out, out, metric=given.get("metric")))
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
