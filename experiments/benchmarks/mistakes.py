"""Makes each mistake of the tests at a real command line, and measures how long its sentence takes.

    python -m experiments.benchmarks.mistakes

Each must end with exit code 2, one line of errors and no traceback. Run it in the folder of the
repository, whose tests have the mistakes.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.configuration import test_typical_mistakes
from tests.test_mistakes import FILES, MISTAKES

ROOT = Path(__file__).parents[2]
SECONDS = 2.0


def lines() -> list[list[str]]:
    """Returns the words of each command, with that of Python."""
    found = [line.split(" ") for line in MISTAKES]
    found += [["train", *shlex.split(line)] for line in test_typical_mistakes.MISTAKES]
    return [[sys.executable, "-m", f"rl4p.{command}", *words] for command, *words in found]


def main() -> int:
    wrong, times = [], []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        for words in lines():
            began = time.perf_counter()
            done = subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True
            )
            times.append((time.perf_counter() - began, shlex.join(words[2:])))
            text = done.stdout + done.stderr
            if done.returncode != 2 or done.stderr.count("\n") != 1 or "Traceback" in text:
                wrong.append(f"exit code {done.returncode}: {times[-1][1]}: {text[-300:]}")
    for each in wrong:
        print(each, file=sys.stderr)
    times.sort(reverse=True)
    late = [f"{seconds:.2f} s: {line}" for seconds, line in times if seconds > SECONDS]
    print(f"{len(times)} mistakes, {len(wrong)} wrong, slowest {times[0][0]:.2f} s: {times[0][1]}")
    print(f"median {times[len(times) // 2][0]:.2f} s; over {SECONDS:.0f} s: {late or 'none'}")
    return int(bool(wrong or late))


if __name__ == "__main__":
    sys.exit(main())
