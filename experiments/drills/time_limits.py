"""Kills runs at a time limit that `stop.before` knows, as a queue does.

    python -m experiments.drills.time_limits [--tries 10]

Each run must have ended by itself with exit code 4 and a checkpoint, from which it then goes on.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SLOWLY, SMALL, run, start, summary
from rl4p.base.errors import OutOfTime
from rl4p.runs.saved_steps import chosen_step

LEAST, MOST = 40, 70  # seconds of a limit; a start takes about ten


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=10)
    tries, draw, wrong = parser.parse_args().tries, random.Random(0), []
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(tries):
            folder, limit = Path(temporary) / str(number), draw.randint(LEAST, MOST)
            words = (
                *SMALL,
                SLOWLY,
                "steps=100000",
                f"stop.before=00:{limit // 60:02}:{limit % 60:02}",
            )
            process = start(*words, f"hydra.run.dir={folder}")
            try:
                _, said = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                _, said = process.communicate()
            if process.returncode != OutOfTime.exit_code:
                wrong.append(f"try {number}: exit code {process.returncode}: {said[-300:]}")
                continue
            step = summary(folder)["step"]
            if summary(folder)["stopped_by"] != "before":
                wrong.append(f"try {number}: its summary does not say why it ended")
            # After hundreds of steps some have equal rewards, and so no gradient.
            if summary(folder)["idle_steps"]["zero_gradient"] > step // 2:
                wrong.append(f"try {number}: it trained nothing in most of its {step} steps")
            if chosen_step(folder / "checkpoints") != step:
                wrong.append(f"try {number}: step {step} is not saved")
            resumed = run(f"resume={folder}", "stop.before=null", f"steps={step + 1}")
            if resumed.returncode or summary(folder)["resumed_from"] != step:
                wrong.append(f"try {number}: it does not go on: {resumed.stderr[-300:]}")
    for each in wrong:
        print(each, file=sys.stderr)
    got = {"tries": tries, "wrong": len(wrong)}
    text = "exit code 4 and a checkpoint that loads before the limit, and the run goes on"
    return tell("time_limits", text, got, held=not wrong)


if __name__ == "__main__":
    sys.exit(main())
