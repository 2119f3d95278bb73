"""Runs of the real entry point, in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

# Small and quick to compile; the tracker has tests of its own.
SMALL = (
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
    "debug=on",
    "tracker=none",
)


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The command line of a small run in a folder."""

    def line(*overrides: str, small: Sequence[str] = SMALL) -> list[str]:
        return [sys.executable, "-m", "rl4p.train", *small, *overrides]

    return line


@pytest.fixture(scope="session")
def train(command: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs to the end."""

    def run(*overrides: str, cwd: Path | None = None, **options: Any) -> Any:
        process = subprocess.run(
            command(*overrides, **options), cwd=cwd, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in process.stderr, process.stderr
        return process

    return run


def lines(folder: Path) -> list[dict[str, Any]]:
    """The record without what a clock says: the rest of two equal runs is equal in every digit."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clock = ("time/", "rollout/tokens_per_second")
    return [{k: v for k, v in row.items() if not k.startswith(clock)} for row in rows]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())
