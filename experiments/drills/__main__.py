"""Runs the command of each row in rows.py, and writes the results to docs/evidence/drills.md.

    python -m experiments.drills [WORD ...]

Two rows run at a time. With words, only rows that contain one of them run, and their lines of the
page are replaced. Exit code 1: a row did not hold.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from experiments.drills.rows import ROWS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "drills.md"
HEAD = """# Drills

What must hold whatever happens, and what shows it. `make drills` carries out each row, two at a
time on two cores, and writes this page. `python -m experiments.drills WORD` renews single rows.
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


def carried_out(row: dict[str, str]) -> tuple[str, bool]:
    """Runs the command of a row; returns its line of the table, and whether it held."""
    began, line = time.monotonic(), command(row)
    done = subprocess.run([sys.executable, *line], cwd=ROOT, capture_output=True, text=True)
    held, seconds = done.returncode == 0, time.monotonic() - began
    cells = row["what"], "yes" if held else "no", outcome(row, done), f"{seconds:.0f}"
    text = f"| {' | '.join(cells)} | `python {shlex.join(line)}` |"
    print(text, flush=True)
    if not held:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", file=sys.stderr, flush=True)
    return text, held


def main(words: list[str]) -> int:
    chosen = {
        part: [row for row in rows if not words or any(word in str(row) for word in words)]
        for part, rows in ROWS.items()
    }
    with ThreadPoolExecutor(2) as pool:
        results = {part: list(pool.map(carried_out, rows)) for part, rows in chosen.items()}
    lines = {part: [text for text, _ in rows] for part, rows in results.items()}
    if not words:
        PAGE.write_text(page(lines))
    elif PAGE.exists():
        PAGE.write_text(
            renewed(PAGE.read_text(), [line for each in lines.values() for line in each])
        )
    return int(not all(held for rows in results.values() for _, held in rows))


def renewed(text: str, lines: Sequence[str]) -> str:
    """Returns the text of the page with some lines anew; a row that never ran has no line."""
    known = {line.split(" | ")[0]: line for line in [*text.splitlines(), *lines]}
    parts = {part: [f"| {row['what']}" for row in rows] for part, rows in ROWS.items()}
    return page({part: [known[x] for x in names if x in known] for part, names in parts.items()})


def page(lines: Mapping[str, Sequence[str]]) -> str:
    """Returns the page with a table for each part."""
    table = "| what | held | figures | seconds | command |\n|---|---|---|---|---|\n"
    return HEAD + "".join(
        f"\n## {part.capitalize()}\n\n{table}" + "".join(f"{line}\n" for line in rows)
        for part, rows in lines.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
