"""Stops a run with SIGTERM at random moments, and checks that it resumes as if it had gone on.

    python -m experiments.drills.stops [--stops 20]

A run is started, stopped, resumed, and stopped again until it ends. Each start compiles. Half of
the stops come at a random time, a quarter in one of the first compilations and a quarter in one of
the first evaluations. Each stop must end the process within 30 s, the time that Slurm leaves, with
a checkpoint that loads once three steps have ended. At last the run must equal a run that was not
stopped in its metrics, samples and parameters.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from experiments.drills.interruptions import Whole, begun_or_resumed, run_to_its_end
from experiments.drills.outcome import tell
from experiments.drills.small_run import SLOWLY, SMALL, compiling, difference, environment
from rl4p.base.errors import Stopped
from rl4p.runs.saved_steps import newest_undamaged, steps_of

STEPS = ("steps=16", "checkpoint.every=2", "group_size=8", SLOWLY, "data.held_out_size=64")
SECONDS = 30.0  # between SIGTERM and SIGKILL of Slurm
NEVER = 300.0  # seconds; a process that has not ended then is killed
BETWEEN = 0.002  # seconds between two looks at what a run does
CHILD = (sys.executable, "-m", "experiments.drills.stops", "--child")
FILE = "DRILL_ACTIVITY"  # the variable that names the file in which a child notes what it does
WAITED_FOR = {"compile": 8, "evaluation": 4}  # of so many, one is drawn


def train_and_note() -> None:
    """Trains, and notes in a file what the run does: the program of the runs that are stopped."""
    from rl4p.loop.stopwatch import activity
    from rl4p.train import main

    file, sys.argv = Path(os.environ[FILE]), [sys.argv[0], *sys.argv[2:]]

    def note() -> None:
        last = ""
        while True:
            now = activity()
            name = now[0] if now is not None else "between" if last else ""
            if name != last:
                file.with_suffix(".new").write_text(last := name)
                file.with_suffix(".new").replace(file)
            time.sleep(BETWEEN)

    threading.Thread(target=note, daemon=True).start()
    main()


class Stops:
    """The stops of a drill.

    Args:
      asked: how many there should be.
      seconds: how long a run takes.
      activity: the file in which a run notes what it does.
    """

    def __init__(self, asked: int, seconds: float, activity: Path):
        self.asked, self.seconds, self.activity = asked, seconds, activity
        self.draw = random.Random(0)
        self.during: Counter[str] = Counter()
        self.longest, self.by_force, self.without = 0.0, 0, 0
        self.wrong: list[str] = []
        self.folder = Path()

    @property
    def count(self) -> int:
        return self.during.total()

    def stopped(self, process: subprocess.Popen) -> bool:
        """Stops a run after some time; returns False if it has ended before."""
        if self.count >= self.asked:
            return False
        self.activity.write_text("start")
        target = (*WAITED_FOR, None, None)[self.count % 4]
        left = self.draw.randint(1, WAITED_FOR[target]) if target else 0
        until = time.monotonic() + (0 if target else self.draw.uniform(0, self.seconds))
        last = ""
        while left or time.monotonic() < until:
            if process.poll() is not None:
                return False
            now = self.activity.read_text()
            left -= now == target != last
            last = now
            time.sleep(BETWEEN)
        during, began = self.activity.read_text(), time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=NEVER)
        except subprocess.TimeoutExpired:
            process.kill()
        _, said = process.communicate()
        if process.returncode == 0:  # it ended in that moment
            return True
        self.during[during] += 1
        self.judge(process.returncode, time.monotonic() - began, during, said)
        return True

    def judge(self, exit_code: int, seconds: float, during: str, said: str) -> None:
        """Notes how a stop has ended, and what was wrong with it."""
        self.longest = max(self.longest, seconds)
        self.by_force += "took too long to end" in said
        name = f"stop {self.count} in {during}"
        if seconds > SECONDS:
            self.wrong.append(f"{name}: {seconds:.1f} s")
        # Before and after the run itself, SIGTERM ends a process as the system does.
        outside = during == "start" or (self.folder / "summary.json").is_file()
        if exit_code != Stopped.exit_code and not (outside and exit_code == -signal.SIGTERM):
            self.wrong.append(f"{name}: exit code {exit_code}: {said[-300:]}")
        checkpoints, metrics = self.folder / "checkpoints", self.folder / "metrics.jsonl"
        if newest_undamaged(checkpoints)[0] is None:
            lines = metrics.read_text().count("\n") if metrics.is_file() else 0
            self.without += 1
            if steps_of(checkpoints) or lines > 1 + 2:
                self.wrong.append(f"{name}: no checkpoint loads after {lines - 1} steps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=20)
    asked, ended = parser.parse_args().stops, 0
    with tempfile.TemporaryDirectory() as temporary:
        variables = {FILE: str(Path(temporary) / "now"), **compiling(Path(temporary) / "empty")}
        options = {"program": CHILD, "env": environment(**variables)}
        whole = Whole(Path(temporary), *SMALL, *STEPS, more=None, **options)
        if not whole.trains:
            return tell("stops", "a run that trains", "some step had no gradient", held=False)
        stops = Stops(asked, whole.seconds, Path(variables[FILE]))
        while stops.count < asked:
            stops.folder = Path(temporary) / f"run_{ended}"
            said = run_to_its_end(
                lambda: begun_or_resumed(stops.folder, *SMALL, *STEPS), stops.stopped, **options
            )
            if problem := said or difference(stops.folder, whole.folder):
                stops.wrong.append(f"run {ended}: {problem}")
            ended += 1
    for each in stops.wrong:
        print(each, file=sys.stderr)
    got = {
        "stops": stops.count,
        **{f"in {name}": count for name, count in stops.during.most_common()},
        "ended by force": stops.by_force,
        "before the first checkpoint": stops.without,
        "longest": f"{stops.longest:.1f} s",
        "runs": ended,
        "wrong": len(stops.wrong),
    }
    text = "an end within 30 s, a checkpoint that loads, and every run exact"
    held = not stops.wrong and all(stops.during[name] for name in WAITED_FOR)
    return tell("stops", text, got, held=held)


if __name__ == "__main__":
    sys.exit(train_and_note() if sys.argv[1:2] == ["--child"] else main())
