"""Compares the remaining time that a run shows with the time that came.

    python -m experiments.benchmarks.remaining_time [--steps 30] [OVERRIDE ...]

Four runs, with and without evaluations, each with an empty and then with a full cache of compiled
programs, and a sweep of three runs. From the third step on, each line's estimate is compared with
the time until the last step; in the sweep, with the time until the last step of its last job. An
error is a share of the time that came. The last tenth is left out, in which a second decides.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FIRST_STEP = 3
MOST = 0.25  # the largest error
LAST_PART = 0.1  # of the time, that is left out
AMOUNT = r"(\d+(?:\.\d)?) (s|min|h) left"
LINE = re.compile(rf"step (\d+)/\d+  .* s/step, {AMOUNT}(?:, {AMOUNT} of the sweep)?")
SECONDS = {"s": 1, "min": 60, "h": 3600}
SEEDS = "seed=0,1,2"


class Shown(NamedTuple):
    """An estimate.

    Attributes:
      at: when it was shown, in seconds.
      step: the step after which it was shown.
      left: the estimated seconds.
    """

    at: float
    step: int
    left: float


def shown_by(words: Sequence[str], environment: dict[str, str]) -> list[Shown]:
    """Runs the trainer and returns the estimates that it shows."""
    command = [sys.executable, "-m", "rl4p.train", *words, "tracker=none", "samples.every=0"]
    shown = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if match := LINE.fullmatch(line.rstrip("\n").partition("  memory")[0]):
                amount, unit = match.group(4, 5) if match[4] else match.group(2, 3)
                left = float(amount) * SECONDS[unit]
                shown.append(Shown(time.perf_counter(), int(match[1]), left))
    if process.returncode or not shown:
        raise SystemExit(f"{' '.join(command)} has failed.")
    return shown


def row(name: str, shown: Sequence[Shown]) -> tuple[str, float]:
    """Returns a row of the table, and the largest error."""
    begun, ended = shown[0].at, shown[-1].at
    judged = []
    for index, each in enumerate(shown):
        came = ended - each.at
        if (each.step >= FIRST_STEP or index > FIRST_STEP) and came > LAST_PART * (ended - begun):
            judged.append((each, came, abs(each.left - came) / came))
    first, came, error = judged[0]
    largest = max(error for *_, error in judged)
    cells = name, f"{first.left:.0f}", f"{came:.0f}", f"{error:.0%}", f"{largest:.0%}"
    return f"| {' | '.join(cells)} |", largest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    arguments, more = parser.parse_known_args()
    words = [f"steps={arguments.steps}", *more]
    kinds = {"with evaluations": (), "without evaluations": ("evaluation.every=0",)}
    print("| run | shown at step 3, s | came, s | error | largest error from then on |")
    print("|---|---|---|---|---|")
    errors = []
    with tempfile.TemporaryDirectory() as temporary:
        for kind, options in kinds.items():
            cache = str(Path(temporary) / kind)
            environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
            for number, state in enumerate(("empty", "full")):
                folder = f"hydra.run.dir={Path(temporary) / f'{kind} {number}'!s}".replace(" ", "_")
                text, error = row(
                    f"{kind}, {state} cache", shown_by([*words, *options, folder], environment)
                )
                print(text, flush=True)
                errors.append(error)
        folder = f"hydra.sweep.dir={Path(temporary) / 'sweep'}"
        text, error = row("sweep", shown_by(["-m", *words, SEEDS, folder], environment))
        print(text, flush=True)
    return int(max([*errors, error]) > MOST)


if __name__ == "__main__":
    sys.exit(main())
