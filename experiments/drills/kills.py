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
from pathlib import Path

from experiments.drills.interruptions import (
    Whole,
    begun_or_resumed,
    killed_after,
    run_to_its_end,
)
from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, difference

STEPS = ("steps=30", "checkpoint.every=2", "group_size=8", "optimizer.learning_rate=0.001")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    asked, draw = parser.parse_args().kills, random.Random(0)
    kills, ended, wrong = 0, 0, []
    with tempfile.TemporaryDirectory() as temporary:
        whole = Whole(Path(temporary), *SMALL, *STEPS)
        if not whole.trains:
            return tell("kills", "a run that trains", "some step had no gradient", held=False)

        def killed(process: subprocess.Popen) -> bool:
            nonlocal kills
            wait = draw.uniform(0, whole.seconds) if kills < asked else None
            kills += (was_killed := killed_after(process, wait))
            return was_killed

        while kills < asked:
            folder = Path(temporary) / f"run_{ended}"
            said = run_to_its_end(lambda: begun_or_resumed(folder, *SMALL, *STEPS), killed)  # noqa: B023
            if problem := said or difference(folder, whole.folder):
                wrong.append(f"run {ended}: {problem}")
            ended += 1
    for each in wrong:
        print(each, file=sys.stderr)
    got = {"kills": kills, "runs": ended, "runs that differ": len(wrong)}
    return tell("kills", f"{asked} kills, every run exact", got, held=not wrong)


if __name__ == "__main__":
    sys.exit(main())
