"""Runs the command of each row in rows.py, and writes the results to docs/drills.md.

    python -m experiments.drills [WORD ...]

With words, only rows that contain one of them run, and nothing is written.
Exit code 1: a row did not hold.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from experiments.drills.rows import ROWS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "drills.md"
HEAD = """# Drills

What must hold whatever happens, and what shows it. Each row was carried out by
`python -m experiments.drills`, which wrote this page.
"""


def command(row: dict[str, str]) -> list[str]:
    """Returns the arguments of Python that show what a row promises."""
    if "drill" in row:
        return ["-m", f"experiments.drills.{row['drill']}"]
    marks = "parity" if "parity" in row else "slow or not slow"
    return ["-m", "pytest", "-q", "-m", marks, *shlex.split(row.get("parity") or row["tests"])]


def outcome(row: dict[str, str], done: subprocess.CompletedProcess) -> str:
    """Returns what the command of a row printed as its result, for the table."""
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if "drill" not in row:
        return re.sub(r" in [0-9.]+s.*", "", last)
    try:
        found: dict[str, Any] = json.loads(last)
    except ValueError:
        return f"exit code {done.returncode}"
    got = found["got"]
    figures = ", ".join(f"{k}: {v}" for k, v in got.items()) if isinstance(got, dict) else got
    return f"asked: {found['asked']}; got: {figures}"


def main(words: list[str]) -> int:
    lines, failed = [HEAD], 0
    for part, rows in ROWS.items():
        lines += [f"\n## {part.capitalize()}\n", "| what | held | figures | seconds | command |"]
        lines.append("|---|---|---|---|---|")
        for row in rows:
            if words and not any(word in " ".join(row.values()) for word in words):
                continue
            began, line = time.monotonic(), command(row)
            done = subprocess.run([sys.executable, *line], cwd=ROOT, capture_output=True, text=True)
            seconds, failed = time.monotonic() - began, failed + (done.returncode != 0)
            held = "no" if done.returncode else "yes"
            cells = row["what"], held, outcome(row, done), f"{seconds:.0f}"
            lines.append(f"| {' | '.join(cells)} | `python {shlex.join(line)}` |")
            print(lines[-1], flush=True)
            if done.returncode:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", file=sys.stderr)
    if not words:
        PAGE.write_text("\n".join(lines) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
