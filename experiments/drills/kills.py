"""Kills a run at random moments, and checks that it resumes as if it had never been killed.

    python -m experiments.drills.kills [--kills 50]

A run is started, killed with SIGKILL, resumed, and killed again until it ends. It must then equal
an uninterrupted run in its metrics, samples and parameters. This is repeated until there were
enough kills. The moments are drawn between the start of the process and the time that a whole run
takes, so that kills hit the start, steps, saves and the end.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, difference, run, start, trains

STEPS = ("steps=30", "checkpoint.every=2", "group_size=8", "optimizer.learning_rate=0.001")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    asked, draw = parser.parse_args().kills, random.Random(0)
    kills, ended, wrong = 0, 0, []
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        run(*SMALL, *STEPS, f"hydra.run.dir={whole}")  # compiles
        began = time.perf_counter()
        run(*SMALL, *STEPS, f"hydra.run.dir={Path(temporary) / 'again'}")
        seconds = time.perf_counter() - began
        if not trains(whole):
            return tell("kills", "a run that trains", "some step had no gradient", held=False)
        while kills < asked:
            folder = Path(temporary) / f"run_{ended}"
            while True:
                begun = (folder / "metrics.jsonl").is_file()
                words = (
                    [f"resume={folder}"] if begun else [*SMALL, *STEPS, f"hydra.run.dir={folder}"]
                )
                process = start(*words)
                try:
                    wait = draw.uniform(0, seconds) if kills < asked else None
                    _, said = process.communicate(timeout=wait)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    kills += 1
                    continue
                if process.returncode == 0:
                    break
                wrong.append(f"run {ended}: exit code {process.returncode}: {said[-300:]}")
                break
            if found := difference(folder, whole):
                wrong.append(f"run {ended}: {found}")
            ended += 1
    for each in wrong:
        print(each, file=sys.stderr)
    got = {"kills": kills, "runs": ended, "runs that differ": len(wrong)}
    return tell("kills", f"{asked} kills, every run exact", got, held=not wrong)


if __name__ == "__main__":
    sys.exit(main())
