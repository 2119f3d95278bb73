"""Measures the memory of a process over many small steps: it stays the same.

    python -m experiments.drills.memory [--steps 2000]

The resident memory is read at every tenth of the steps. After the first quarter, in which buffers
and caches fill, the mean of the last tenths may be at most 2 % above that of the first ones.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SLOWLY, SMALL, record, start

LIMIT = 1.02
SELDOM = "evaluation.every=100"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        words = f"steps={steps}", f"checkpoint.every={steps // 4}", f"hydra.run.dir={folder}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = start(*SMALL, *words, SLOWLY, SELDOM, **quiet)
        found: list[tuple[int, int]] = []  # step, bytes
        while process.poll() is None:
            if (step := last_step(folder)) and (not found or step > found[-1][0]):
                found.append((step, resident(process.pid)))
            time.sleep(0.1)
        rows = record(folder) if process.returncode == 0 else []
    moved = sum(row.get("update/grad_norm", 0.0) > 0 for row in rows)
    if moved < steps // 2:
        asked = "exit code 0, and a gradient in most steps"
        got = {"exit code": process.returncode, "steps with a gradient": moved}
        return tell("memory", asked, got, held=False)
    kept = [size for step, size in found if step > steps // 4 and size]
    part = max(1, len(kept) // 5)
    first, last = (sum(each) / part for each in (kept[:part], kept[-part:]))
    got = {"MiB": [round(first / 2**20), round(last / 2**20)], "ratio": round(last / first, 4)}
    got["steps with a gradient"] = moved
    asked = f"memory flat within 2 % from step {steps // 4} to {steps}"
    return tell("memory", asked, got | {"readings": len(kept)}, held=last <= LIMIT * first)


def last_step(folder: Path) -> int:
    """Returns the newest step of a run's record; 0 before the first."""
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def resident(process: int) -> int:
    """Returns the resident bytes of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


if __name__ == "__main__":
    sys.exit(main())
