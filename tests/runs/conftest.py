"""Fixtures that run the real entry point in separate processes."""

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

from rl4p.runs.intact import steps_of

# A reward term that random responses satisfy about half of the time. A run in which all rewards
# are equal trains nothing.
GRADED = (
    "+reward.terms.capital._target_=rl4p.reward.format.Format",
    "+reward.terms.capital.weight=1.0",
    "+reward.terms.capital.pattern='.*[A-Z].*'",
    "evaluation.term=capital",
)
# Small and fast to compile. The tracker has its own tests.
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
    """Returns a function that gives the command line of a small run."""

    def line(*overrides: str, small: Sequence[str] = SMALL) -> list[str]:
        return [sys.executable, "-m", "rl4p.train", *small, *overrides]

    return line


@pytest.fixture(scope="session")
def train(command: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs a small run to its end."""

    def run(*overrides: str, cwd: Path | None = None, **options: Any) -> Any:
        process = subprocess.run(
            command(*overrides, **options), cwd=cwd, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in process.stderr, process.stderr
        return process

    return run


def lines(folder: Path) -> list[dict[str, Any]]:
    """Returns the record without times; all else is equal in every digit for two equal runs."""
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
        # With one sign the size of the mean would be about that of the largest advantage.
        assert 0 <= abs(row["advantage/mean"]) < 0.99 * row["advantage/max"], row["step"]


def checkpoint(folder: Path, step: int | None = None) -> tuple[dict[str, np.ndarray], Any]:
    """Returns the arrays of a checkpoint by name, and the state of the source and collector.

    Args:
      folder: the folder of the run.
      step: the step of the checkpoint; None is the last one.
    """
    place = folder / "checkpoints"
    last = place / str(steps_of(place)[-1] if step is None else step)
    reader, saved = ocp.PyTreeCheckpointer(), (last / "state").absolute()
    on_host = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
        reader.metadata(saved).item_metadata.tree,
    )
    leaves, _ = jax.tree.flatten_with_path(reader.restore(saved, restore_args=on_host))
    arrays = {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}
    return arrays, json.loads((last / "parts" / "metadata").read_text())


def params(folder: Path) -> np.ndarray:
    """Returns the parameters of the last checkpoint as one vector."""
    arrays, _ = checkpoint(folder)
    return np.concatenate(
        [x.ravel() for name, x in arrays.items() if name.startswith("['params']")]
    )


def assert_same_checkpoint(a: Path, b: Path) -> None:
    """Checks that the last checkpoints of two runs are equal bit for bit."""
    (one, parts), (other, other_parts) = checkpoint(a), checkpoint(b)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name, strict=True)
    assert parts == other_parts


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())
