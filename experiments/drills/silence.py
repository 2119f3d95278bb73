"""Measures how long a run prints nothing while it compiles for minutes and grades for a minute.

    python -m experiments.drills.silence [--layers 250]

The run has a model of many layers that are compiled one by one, and a term of the reward that takes
a minute. It runs twice at the same time: with its output in a pipe, and on a terminal. Both have 40
columns. Without a terminal, each line from the first step line to the last must be one record.
"""

import argparse
import fcntl
import itertools
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, command, compiling, environment, trains
from rl4p.base.types import Episode

STEPS = 2
GRADING, COMPILATION = 60.0, 200.0  # the least seconds of a step and of all compilations
PLAIN, TERMINAL = 60.0, 2.0  # the longest silence, in seconds
COLUMNS = 40
# A step and its fields, or a warning of the log.
RECORD = re.compile(r"step \d+/\d+(?:  \S+(?: \S+)*)+|\[[\d: ,-]+\]\[[\w.]+\]\[[A-Z]+\] - .+")
WORDS = (
    *SMALL,
    *("model.remat=none", "model.unroll=true", f"steps={STEPS}", "evaluation.every=0"),
    *("samples.every=0", "checkpoint.every=0", "trusted_targets=experiments.drills.silence"),
    "+reward.terms.slow._target_=experiments.drills.silence.Slow",
    "+reward.terms.slow.weight=1.0",
)


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A grade of 0 for all responses, after a minute."""

    weight: float
    deadline: float = 2 * GRADING

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        time.sleep(GRADING)
        return [0.0] * len(episodes)


class Watched:
    """A run whose output is read, with the time of each part.

    Args:
      folder: the folder of the run.
      layers: the number of layers of its model.
      terminal: whether its output is a terminal.
    """

    def __init__(self, folder: Path, layers: int, *, terminal: bool) -> None:
        self.folder, self.parts = folder, [(time.monotonic(), b"")]
        self.output, given = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(given, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        variables = compiling(folder.parent / "empty")
        variables |= {"COLUMNS": str(COLUMNS), "TERM": "xterm"}
        words = command(*WORDS, f"model.layers={layers}", f"hydra.run.dir={folder}")
        self.process = subprocess.Popen(
            words, stdout=given, stderr=subprocess.STDOUT, env=environment(**variables)
        )
        os.close(given)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self) -> None:
        """Reads until the run has closed its output; a terminal then raises OSError."""
        while True:
            try:
                part = os.read(self.output, 1 << 16)
            except OSError:
                return
            if not part:
                return
            self.parts.append((time.monotonic(), part))

    def ended(self) -> bool:
        """Waits for the run, and returns whether it has trained."""
        code = self.process.wait()
        self.thread.join()
        if code:
            print(self.text()[-3000:], file=sys.stderr)
        return code == 0 and trains(self.folder)

    def text(self) -> str:
        return b"".join(part for _, part in self.parts).decode(errors="replace")

    def silence(self) -> float:
        """Returns the longest time between two parts of the output after its first."""
        times = [at for at, _ in self.parts[1:]]
        return max(later - at for at, later in itertools.pairwise(times))

    def broken(self) -> list[str]:
        """Returns the lines from the first record to the last that are no records."""
        lines = self.text().splitlines()
        steps = [number for number, line in enumerate(lines) if line.startswith("step ")]
        return [x for x in lines[steps[0] : steps[-1] + 1] if not RECORD.fullmatch(x)]

    def seconds(self, name: str) -> float:
        """Returns the sum of a time over the steps, the evaluation before them included."""
        rows = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return sum(row.get(f"time/{name}", 0.0) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=250)
    layers = parser.parse_args().layers
    with tempfile.TemporaryDirectory() as temporary:
        plain, shown = (
            Watched(Path(temporary) / name, layers, terminal=terminal)
            for name, terminal in (("plain", False), ("terminal", True))
        )
        trained = all([plain.ended(), shown.ended()])
        if not trained:
            return tell("silence", "two runs that train", "one has failed", held=False)
        compilation = plain.seconds("compile") + plain.seconds("evaluation_compile")
        grading, broken = plain.seconds("reward") / STEPS, plain.broken()
    for line in broken:
        print(line, file=sys.stderr)
    silences = plain.silence(), shown.silence()
    got = {
        "seconds of compilation": round(compilation),
        "of grading in a step": round(grading),
        "longest silence in plain output": f"{silences[0]:.1f} s",
        "on a terminal": f"{silences[1]:.1f} s",
        "lines that are no record": len(broken),
    }
    held = (
        compilation >= COMPILATION
        and grading >= GRADING
        and silences[0] <= PLAIN
        and silences[1] <= TERMINAL
        and not broken
    )
    text = "60 s without a terminal and 2 s on one, and only records of one line"
    return tell("silence", text, got, held=held)


if __name__ == "__main__":
    sys.exit(main())
