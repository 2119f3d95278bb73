"""Kills runs with `checkpoint.keep=1` during saves, and checks that a checkpoint can be loaded.

    python -m experiments.drills.killed_saves [--kills 20]

A run is killed some milliseconds after the temporary folder of a checkpoint appears, resumed, and
killed in a later save. At last it must equal an uninterrupted run.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, difference, run, start, trains
from rl4p.runs.saved_steps import newest_undamaged, steps_of

STEPS = ("steps=12", "checkpoint.every=1", "checkpoint.keep=1")
TEMPORARY = "*.orbax-checkpoint-tmp*"
LONGEST_WAIT = 0.03  # seconds in a save, which takes about that


def saving(checkpoints: Path) -> int:
    """Returns the step that is being saved, 0 for none."""
    return max((int(x.name.partition(".")[0]) for x in checkpoints.glob(TEMPORARY)), default=0)


def killed(words: list[str], checkpoints: Path, draw: random.Random) -> str | None:
    """Starts a run and kills it in a save; returns what it said if it ended before."""
    process = start(*words)
    step = max(steps_of(checkpoints), default=0) + draw.randint(1, 3)
    while process.poll() is None and saving(checkpoints) < step:
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, LONGEST_WAIT))
    process.kill()
    _, said = process.communicate()
    return said if process.returncode >= 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    asked, draw = parser.parse_args().kills, random.Random(0)
    kills, inside, ended, wrong = 0, 0, 0, []
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        run(*SMALL, *STEPS, f"hydra.run.dir={whole}")
        if not trains(whole):
            return tell("killed_saves", "a run that trains", "a step had no gradient", held=False)
        while kills < asked:
            folder = Path(temporary) / f"run_{ended}"
            words, checkpoints = [*SMALL, *STEPS, f"hydra.run.dir={folder}"], folder / "checkpoints"
            while (said := killed(words, checkpoints, draw)) is None:
                kills += 1
                inside += saving(checkpoints) > 0
                complete = steps_of(checkpoints)
                if complete and newest_undamaged(checkpoints)[0] is None:
                    wrong.append(f"run {ended}: no checkpoint loads")
                words = [f"resume={folder}"]
            if found := difference(folder, whole):
                wrong.append(f"run {ended}: {found}: {said[-300:]}")
            ended += 1
    for each in wrong:
        print(each, file=sys.stderr)
    got = {"kills": kills, "inside a save": inside, "runs": ended, "wrong": len(wrong)}
    text = "a checkpoint that loads after each kill, and every run exact"
    return tell("killed_saves", text, got, held=not wrong and inside >= asked // 2)


if __name__ == "__main__":
    sys.exit(main())
