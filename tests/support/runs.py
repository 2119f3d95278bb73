"""What tests of whole runs read of a run's folder."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments.drills.small_run import SMALL as TRAINS
from experiments.drills.small_run import record, summary
from rl4p.runs.saved_steps import steps_of
from tests.support.forks import Forks

SMALL = (*TRAINS, "debug=on")
lines = record


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


def free_port() -> int:
    """Returns a free port whose lower neighbour is free too."""
    while True:
        with socket.socket() as one, socket.socket() as below, contextlib.suppress(OSError):
            one.bind(("", 0))
            below.bind(("", one.getsockname()[1] - 1))
            return one.getsockname()[1]


def ended(processes, codes, seconds=600) -> list[str]:
    """Waits for all processes, checks their exit codes, and returns their standard error."""
    spoken = [process.communicate(timeout=seconds)[1] for process in processes]
    assert [process.returncode for process in processes] == list(codes), "\n".join(spoken)
    return spoken


def interrupt(command: list[str], awaited: Path, number: signal.Signals) -> int:
    """Starts a run, sends it a signal once a file exists, and returns its exit code."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        if awaited.exists():
            process.send_signal(number)
            break
        time.sleep(0.002)
    process.communicate()
    return process.returncode


def kill(command, folder: Path, options: tuple[str, ...], **others) -> None:
    """Starts a run, and kills it in some step after the first checkpoint exists."""
    every = next(x.partition("=")[2] for x in options if x.startswith("checkpoint.every="))
    killed = command(*options, f"hydra.run.dir={folder}", **others)
    interrupt(killed, folder / "checkpoints" / every, signal.SIGKILL)
    assert not (folder / "summary.json").exists()


def resume(train, folder: Path) -> None:
    process = train(f"resume={folder}", small=())
    assert process.returncode == 0, process.stderr


def assert_gone_on(folder: Path, whole: Path) -> None:
    """Checks that an interrupted run equals an uninterrupted one in every digit."""
    assert lines(folder) == lines(whole)
    assert (folder / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()
    assert (folder / "questions.jsonl").read_text() == (whole / "questions.jsonl").read_text()
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]
    assert_same_checkpoint(folder, whole)


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """Returns a function that gives the command line of a small run."""

    def line(*overrides: str, small: Sequence[str] = SMALL) -> list[str]:
        return [sys.executable, "-m", "rl4p.train", *small, *overrides]

    return line


@pytest.fixture(scope="session")
def train(command: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs a small run to its end."""
    forks = Forks()

    def run(*overrides: str, cwd: Path | None = None, **options: Any) -> Any:
        _python, _m, *words = command(*overrides, **options)
        process = forks.run(words, cwd)
        assert "Traceback" not in process.stderr, process.stderr
        return process

    return run
