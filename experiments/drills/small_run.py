"""A small run that really trains, in processes of its own, and the comparison of two of them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Small and fast to compile. Random responses satisfy the term about half of the time: a run with
# equal rewards trains nothing.
SMALL = (
    "+reward.terms.capital._target_=rl4p.reward.form.Format",
    "+reward.terms.capital.weight=1.0",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
    "evaluation.term=capital",
    "model=scratch",
    "model.width=32",
    "model.layers=1",
    "model.heads=2",
    "model.feed_forward_width=64",
    "data.train_size=40",
    "data.held_out_size=8",
    "prompts_per_step=4",
    "group_size=2",
    "max_response_tokens=8",
    "evaluation.every=2",
    "samples.every=2",
    "optimizer.learning_rate=0.01",
    "tracker=none",
)
SLOWLY = "optimizer.learning_rate=1e-5"  # after SMALL, so that rewards differ for long
TRAIN = (sys.executable, "-m", "rl4p.train")
CLOCK = ("time/", "rollout/tokens_per_second")


def command(*words: str, program: Sequence[str] = TRAIN) -> list:
    return [*program, *words]


def start(*words: str, program: Sequence[str] = TRAIN, **options: Any) -> subprocess.Popen:
    """Starts a run whose output is kept in pipes."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command(*words, program=program), **pipes)


def run(*words: str, program: Sequence[str] = TRAIN, **options: Any) -> subprocess.CompletedProcess:
    """Runs the trainer, or another program, to its end."""
    options = {"capture_output": True, "text": True, "check": False} | options
    return subprocess.run(command(*words, program=program), **options)


def record(folder: Path) -> list[dict[str, Any]]:
    """Returns the metrics of each step without times; all else is equal for two equal runs."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in rows]


def trains(folder: Path) -> bool:
    """Returns whether each step had a gradient and changed the parameters."""
    steps = [row for row in record(folder) if row["step"] > 0]
    return bool(steps) and all(
        row["update/grad_norm"] > 0 and row["update/skipped"] == 0 for row in steps
    )


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def difference(found: Path, whole: Path) -> str:
    """Returns the name of the first thing in which two run folders differ, or ""."""
    if not (found / "summary.json").is_file():
        return "summary.json is missing"
    if record(found) != record(whole):
        return "metrics"
    if (found / "samples.jsonl").read_bytes() != (whole / "samples.jsonl").read_bytes():
        return "samples"
    if summary(found)["params_sha256"] != summary(whole)["params_sha256"]:
        return "parameters"
    return ""


def compiling(folder: Path) -> dict[str, str]:
    """Returns environment variables that keep JAX's cache of programs, in a folder, empty.

    Each run then compiles. Without a cache JAX would not report that it compiles.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9",
    }


def environment(**changed: str | None) -> dict[str, str]:
    """Returns the environment with some variables changed, or removed if they are None."""
    found = {**os.environ, **changed}
    return {name: value for name, value in found.items() if value is not None}
