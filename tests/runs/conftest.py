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

from experiments.drills.small_run import SMALL as TRAINS
from experiments.drills.small_run import record
from experiments.drills.small_run import summary as summary
from rl4p.runs.saved_steps import steps_of

SMALL = (*TRAINS, "debug=on")
lines = record


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
