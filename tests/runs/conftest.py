"""Runs of the real entry point, in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

# A term of the reward that random responses are as likely to satisfy as not, so that there is
# something to learn from: a run whose rewards are all equal trains nothing.
GRADED = (
    "+reward.terms.capital._target_=rl4p.reward.format.Format",
    "+reward.terms.capital.weight=1.0",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
    "evaluation.term=capital",
)
# Small and quick to compile; the tracker has tests of its own.
SMALL = (
    *GRADED,
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


def assert_trains(rows: list[dict[str, Any]]) -> None:
    """Checks that every step had a gradient, and advantages of both signs."""
    steps = [row for row in rows if row["step"] > 0]
    assert steps
    for row in steps:
        assert row["update/grad_norm"] > 0, row["step"]
        assert row["update/skipped"] == 0, row["step"]
        # All of one sign, and equal or not: the mean's size would be as large as the largest's.
        assert 0 <= abs(row["advantage/mean"]) < 0.99 * row["advantage/max"], row["step"]


def checkpoint(folder: Path, step: int | None = None) -> tuple[dict[str, np.ndarray], Any]:
    """Returns all that a checkpoint holds: its arrays by name, and the state of other parts.

    Args:
      folder: of the run.
      step: None is the last.
    """
    steps = {int(path.name): path for path in (folder / "checkpoints").iterdir()}
    last = steps[max(steps) if step is None else step]
    reader, saved = ocp.PyTreeCheckpointer(), (last / "state").absolute()
    on_host = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        reader.metadata(saved).item_metadata.tree,
    )
    leaves, _ = jax.tree.flatten_with_path(reader.restore(saved, restore_args=on_host))
    arrays = {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}
    return arrays, json.loads((last / "parts" / "metadata").read_text())


def params(folder: Path) -> np.ndarray:
    """The parameters of the last checkpoint, as one vector."""
    arrays, _ = checkpoint(folder)
    return np.concatenate(
        [x.ravel() for name, x in arrays.items() if name.startswith("['params']")]
    )


def assert_same_checkpoint(a: Path, b: Path) -> None:
    """Checks that two runs ended with the same bytes: everything that a step changes."""
    (one, parts), (other, other_parts) = checkpoint(a), checkpoint(b)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name, strict=True)
    assert parts == other_parts


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())
