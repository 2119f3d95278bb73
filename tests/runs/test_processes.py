"""Tests runs of several real processes on this machine."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4p.runs.grading import DIGITS
from tests.support.runs import (
    assert_same_checkpoint,
    assert_trains,
    ended,
    free_port,
    lines,
    params,
    summary,
)

# Records every response of every step.
KEPT = ("steps=3", "prompts_per_step=8", "samples.every=1", "samples.count=16")
KEPT += ("model.num_kv_heads=2",)


@pytest.fixture(scope="module")
def start(command, on_devices):
    """Yields a function that starts the processes of a run; ends the processes that remain."""
    with contextlib.ExitStack() as stack:

        def run(processes: int, devices: int, *overrides: str, only=None, env=None, **options):
            address = f"localhost:{free_port()}"
            started = []
            for process in range(processes) if only is None else only:
                own = (
                    f"mesh.coordinator={address}",
                    f"mesh.processes={processes}",
                    f"mesh.process={process}",
                )
                popen = subprocess.Popen(
                    command(*overrides, *(own if processes > 1 else ()), **options),
                    env=on_devices(devices) | (env or {}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                stack.callback(popen.kill)
                started.append(popen)
            return started

        yield run


def wait_for_step(folder: Path, step: int) -> None:
    until = time.monotonic() + 100
    while not (folder / "metrics.jsonl").exists() or lines(folder)[-1]["step"] < step:
        assert time.monotonic() < until, "no step was made"
        time.sleep(0.1)


def assert_alike(a: Path, b: Path, *, rtol: float = 1e-6) -> None:
    """Checks that responses and grades are equal, and parameters and metrics up to rounding.

    Both runs must have trained: parameters that never changed would be equal without meaning.
    """
    assert_trains(lines(a))
    assert_same_samples(a / "samples.jsonl", b / "samples.jsonl")
    one, other = params(a), params(b)
    assert np.linalg.norm(one - other) <= rtol * np.linalg.norm(one)
    for x, y in zip(lines(a), lines(b), strict=True):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_allclose(x[name], y[name], rtol=1e-3, atol=2e-5, err_msg=name)


def assert_same_samples(a: Path, b: Path) -> None:
    """Checks that samples are equal, except for the last of the digits that are kept of numbers."""
    for one, other in zip(*map(samples, (a, b)), strict=True):
        for x, y in zip(numbers(one), numbers(other), strict=True):
            assert abs(x - y) < 1.5 * 10**-DIGITS, (x, y)
        assert one == other


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(sample: dict[str, Any]) -> list[float]:
    """Removes the rounded numbers from a sample and returns them, and sets its times to 0."""
    tokens = sample["tokens"]
    for turn in sample.get("turns", ()):
        turn |= {"sampling_seconds": 0.0, "environment_seconds": 0.0}
    return [sample.pop("advantage", 0.0), *tokens.pop("logprobs"), *tokens.pop("advantages", ())]


@pytest.mark.slow
def test_two_processes_sample_and_train_as_one(start, tmp_path):
    quick = ("steps=1", "debug=off", "evaluation.every=0")
    folders = {shape: tmp_path / "x".join(map(str, shape)) for shape in ((1, 1), (2, 1))}
    for (processes, devices), folder in folders.items():
        run = start(processes, devices, *KEPT, *quick, f"hydra.run.dir={folder}")
        ended(run, [0] * processes)
    alone, two = folders.values()
    assert_alike(alone, two)
    assert lines(two)[-1]["update/grad_norm"] > 0
    assert summary(two)["status"] == "finished"
    assert json.loads((two / "environment.json").read_text())["processes"] == 2
    assert not any("mesh.process=1" in path.read_text() for path in (two / ".hydra").iterdir())


@pytest.mark.slow
def test_two_processes_hold_the_episodes_of_one(start, tmp_path):
    world = (
        *("rollout=environment", "+environment@rollout.environment=gymnasium"),
        "rollout.environment.factory._target_=tests.support.worlds.Letters",
        *("trusted_targets=tests", "reward=episode", "evaluation.term=episode_reward"),
        *("rollout.max_turns=3", "rollout.max_turn_tokens=48", "max_response_tokens=160"),
    )
    folders = {processes: tmp_path / str(processes) for processes in (1, 2)}
    for processes, folder in folders.items():
        run = start(processes, 1, *KEPT, *world, f"hydra.run.dir={folder}")
        ended(run, [0] * processes)
    assert_alike(*folders.values())
    assert lines(folders[2])[-1]["environment/turns"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["4,1,1", "1,4,1", "2,1,2"])
def test_the_devices_of_two_processes_are_as_good_as_those_of_one(shape, start, tmp_path):
    folders = {shape: tmp_path / "x".join(map(str, shape)) for shape in ((1, 1), (1, 4), (2, 2))}
    for (processes, devices), folder in folders.items():
        place = () if devices == 1 else (f"mesh.shape='{shape}'",)
        ended(start(processes, devices, *KEPT, *place, f"hydra.run.dir={folder}"), [0] * processes)
    assert_alike(folders[1, 4], folders[2, 2])
    # Sharded parameters are summed in another order; Adam amplifies the difference.
    assert_alike(folders[1, 1], folders[2, 2], rtol=1e-6 if shape == "4,1,1" else 3e-6)


@pytest.mark.slow
def test_slurm_says_who_is_who(command, on_devices, tmp_path):
    """SLURM's variables are set, without SLURM. Process 0 chooses the folder, named by the time."""
    job = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "2", "STEP_NUM_NODES": "1"}
    port, run = str(free_port()), []
    for task in "01":
        slurm = job | {"PROCID": task, "LOCALID": task}
        env = {f"SLURM_{name}": value for name, value in slurm.items()}
        run.append(
            subprocess.Popen(
                command("mesh.processes=auto", "steps=1"),
                cwd=tmp_path,
                env=on_devices(1) | env | {"JAX_COORDINATOR_PORT": port},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended(run, [0, 0])
    (folder,) = tmp_path.glob("outputs/runs/*/*")
    assert json.loads((folder / "environment.json").read_text())["processes"] == 2
    assert summary(folder)["status"] == "finished"


@pytest.mark.slow
def test_a_run_goes_from_two_processes_to_one_and_back(start, tmp_path):
    phases = ("steps=4", "checkpoint.every=2", "advantage=gae", "critic=separate", "kl=fixed")
    alone, two, one = (tmp_path / name for name in ("alone", "two", "one"))
    ended(start(1, 1, *KEPT, *phases, f"hydra.run.dir={alone}"), [0])
    ended(start(2, 2, *KEPT, *phases, "steps=2", f"hydra.run.dir={two}"), [0, 0])
    ended(start(1, 1, *KEPT, *phases, "steps=2", f"hydra.run.dir={one}"), [0])
    ended(start(1, 1, f"resume={two}", "steps=4", small=()), [0])
    ended(start(2, 2, f"resume={one}", "steps=4", "mesh=fsdp", small=()), [0, 0])
    for folder in (two, one):
        assert summary(folder)["resumed_from"] == 2
        assert_alike(alone, folder, rtol=1e-5)


@pytest.mark.slow
def test_processes_agree_on_the_step_before_a_damaged_one(start, tmp_path):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    steps = ("checkpoint.every=2", "evaluation.every=0")
    ended(start(2, 1, *KEPT, *steps, "steps=4", f"hydra.run.dir={folder}"), [0, 0])
    ended(start(2, 1, *KEPT, *steps, "steps=5", f"hydra.run.dir={whole}"), [0, 0])
    damaged = folder / "checkpoints" / "4" / "parts" / "metadata"
    damaged.write_bytes(damaged.read_bytes().replace(b"0", b"1", 1))
    said = ended(start(2, 1, f"resume={folder}", "steps=5", small=()), [0, 0])
    assert "4 is damaged, because its file parts/metadata has changed" in said[0]
    assert "damaged" not in said[1]
    assert summary(folder)["resumed_from"] == 2
    assert lines(folder) == lines(whole)
    assert_same_checkpoint(folder, whole)
    for step in (4, 5):  # step 2 was removed
        (folder / "checkpoints" / str(step) / "parts" / "metadata").unlink()
    said = ended(start(2, 1, f"resume={folder}", "steps=6", small=()), [2, 1])
    assert (
        f"Each checkpoint in {folder}/checkpoints is damaged: step 5, because its file" in said[0]
    )
    assert "Process 0 of 2 failed: Each checkpoint in" in said[1]


@pytest.mark.slow
def test_a_missing_process_is_named(start, tmp_path):
    folder = tmp_path / "run"
    late = ("mesh.initialization_timeout=4", f"hydra.run.dir={folder}")
    first, third = ended(start(4, 1, *late, only=(0, 2)), [1, 1], seconds=30)
    assert "Process 1, 3 of 4 (from 0) did not connect within 4 s" in first
    assert "Process 1, 3 of 4 (from 0) did not connect within 4 s" in third
    (alone,) = ended(start(2, 1, *late, only=(1,)), [1], seconds=30)
    assert "Process 0 of 2 did not answer process 1" in alone
    assert not folder.exists()


@pytest.mark.slow
def test_processes_of_different_runs_do_not_meet(start, tmp_path):
    run = start(2, 1, f"hydra.run.dir={tmp_path / 'run'}", only=(0,))
    address = next(word for word in run[0].args if word.startswith("mesh.coordinator="))
    other = ("mesh.processes=2", "mesh.process=1", "seed=7")
    run += start(1, 1, address, *other, f"hydra.run.dir={tmp_path / 'run'}")
    for said in ended(run, [2, 1], seconds=30):
        assert said.startswith("The configurations of process 1 and process 0 differ")


@pytest.mark.slow
def test_a_process_that_dies_ends_the_other_which_names_it(start, tmp_path):
    folder = tmp_path / "run"
    run = start(2, 1, *KEPT, "steps=100000", f"hydra.run.dir={folder}")
    wait_for_step(folder, 1)
    run[1].kill()
    first, _ = ended(run, [1, -signal.SIGKILL], seconds=30)
    assert "Process 1 of 2 has died" in first
    assert summary(folder)["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_process_that_is_frozen_ends_the_other_which_names_it(frozen, start, tmp_path):
    folder = tmp_path / "run"
    steps = ("steps=100000", "mesh.heartbeat_timeout=4", f"hydra.run.dir={folder}")
    run = start(2, 1, *KEPT, *steps)
    wait_for_step(folder, 1)
    run[frozen].send_signal(signal.SIGSTOP)
    (said,) = ended([run[1 - frozen]], [1], seconds=60)
    sentence = f"Process {frozen} of 2 has sent no heartbeat for 4 s (mesh.heartbeat_timeout): "
    assert sentence in said
    run[frozen].send_signal(signal.SIGCONT)
    (said,) = ended([run[frozen]], [1], seconds=60)
    assert (sentence if frozen else "Process 1 of 2 has died") in said  # process 0 has told it
    assert summary(folder)["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_an_error_in_one_process_is_told_by_both(which, start, tmp_path):
    (tmp_path / "fails_once.py").write_text(FAILS)
    overrides = (
        *("trusted_targets=[fails_once]", "+reward.terms.odd._target_=fails_once.Fails"),
        f"+reward.terms.odd.process={which}",
    )
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    folder = tmp_path / "run"
    run = start(2, 1, *KEPT, *overrides, f"hydra.run.dir={folder}", env={"PYTHONPATH": path})
    for process, said in enumerate(ended(run, [1, 1])):
        last = said.splitlines()[-1]
        told = "" if process == which else f"Process {which} of 2 failed: "
        assert last.startswith(told + "100% of the samples could not be graded"), last
        assert "reward.terms.odd raised ValueError: the grader is out (" in last
    assert summary(folder)["status"] == "failed"


FAILS = """
from dataclasses import dataclass
import jax

@dataclass(frozen=True, kw_only=True)
class Fails:
    process: int
    weight: float = 1.0

    def __call__(self, episodes):
        if jax.process_index() == self.process:
            raise ValueError("the grader is out")
        return [0.0 for _ in episodes]
"""


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(start, tmp_path):
    folder = tmp_path / "run"
    run = start(2, 1, *KEPT, "steps=100000", f"hydra.run.dir={folder}")
    wait_for_step(folder, 1)
    run[1].terminate()
    ended(run, [3, 3], seconds=60)
    step = summary(folder)["step"]
    assert summary(folder)["status"] == "stopped"
    assert (folder / "checkpoints" / str(step)).is_dir()
    ended(start(1, 1, f"resume={folder}", f"steps={step + 1}", small=()), [0])
    assert summary(folder)["resumed_from"] == step
