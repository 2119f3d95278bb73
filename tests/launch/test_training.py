"""Tests that training which was stopped or killed, and started again, has the same results."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.launch import LAUNCH, RESTARTING, Place, write
from tests.support.runs import (
    SMALL,
    assert_same_checkpoint,
    assert_trains,
    free_port,
    lines,
    summary,
)

EVERY = 4
STEPS = ("steps=24", "prompts_per_step=8", "optimizer.learning_rate=1e-5", "debug=off")


# Starts two tasks with SLURM's variables, and returns the highest exit code, as SLURM does.
SRUN_OF_TWO = r"""#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=1
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
  pids[i]=$!
done
echo "${pids[*]}" >>"$NOTES/tasks"
highest=0
for pid in "${pids[@]}"; do
  wait "$pid"
  code=$?
  highest=$((code > highest ? code : highest))
done
exit $highest
"""


class RealPlace(Place):
    """A folder in which jobs of two tasks really train."""

    def __init__(self, folder: Path, env: dict[str, str]):
        super().__init__(folder)
        write(folder / "bin" / "python", f'#!/bin/bash\nexec {sys.executable} "$@"\n')
        write(folder / "bin" / "srun", SRUN_OF_TWO)
        job = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NAME": "run", "SLURM_SUBMIT_DIR": str(ROOT)}
        job |= {"RUNS": str(folder), "STATE": "RUNNING", "JAX_COORDINATOR_PORT": str(free_port())}
        self.env |= {"XLA_FLAGS": env["XLA_FLAGS"], "RESTART_WAIT": "1"} | job

    def job(self, **env: str) -> subprocess.Popen[str]:
        line = ["bash", str(LAUNCH / "slurm.sh"), *SMALL, *STEPS]
        return subprocess.Popen(line, env=self.env | env, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def real(tmp_path_factory, on_devices):
    """Returns a function that makes places in which jobs really train."""
    return lambda: RealPlace(tmp_path_factory.mktemp("job"), on_devices(1))


@pytest.fixture(scope="module")
def whole(real) -> Path:
    """Returns the folder of a run of two processes that nothing has disturbed."""
    place = real()
    job = place.job()
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 0, said
    assert len(place.notes("tasks")) == 1
    assert_trains(lines(place.run))
    return place.run


def wait_for_line(folder: Path, step: int) -> None:
    """Waits until a run has recorded a step."""
    path, line, until = folder / "metrics.jsonl", f'"step": {step},', time.monotonic() + 100
    while not (path.exists() and line in path.read_text()):
        assert time.monotonic() < until, f"{folder} has no step {step}"
        time.sleep(0.002)


def assert_gone_on(folder: Path, whole: Path, said: str, *, lost: int = 2 * EVERY) -> None:
    """Checks that a run that was started again equals an undisturbed one, and what it lost."""
    assert lines(folder) == lines(whole)
    assert summary(folder)["status"] == "finished"
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]
    assert_same_checkpoint(folder, whole)
    resumed = re.findall(r"resumes from step (\d+); its last step was (\d+)", said)
    # A checkpoint is written beside the steps after it, so the newest may not be complete yet.
    assert all(int(last) - int(start) < lost for start, last in resumed), said
    print("steps lost:", [int(last) - int(start) for start, last in resumed])


@pytest.mark.slow
@pytest.mark.parametrize("task", [0, 1])
@pytest.mark.parametrize("step", [0, 2 * EVERY + 2], ids="at step {}".format)
def test_a_job_that_loses_a_process_goes_on_bit_for_bit(real, whole, step, task):
    """It begins anew if it has no checkpoint yet."""
    place = real()
    job = place.job()
    wait_for_line(place.run, step)
    os.kill(int(place.notes("tasks")[0].split()[task]), signal.SIGKILL)
    said = job.communicate(timeout=300)[1]
    assert job.returncode == 0, said
    assert len(place.notes("tasks")) == 2, said
    assert "Exit code 137" in said
    assert ("begins anew" in said) == (step == 0), said
    assert place.notes("scontrol") == []
    assert_gone_on(place.run, whole, said)


@pytest.mark.slow
def test_a_job_whose_time_is_over_goes_on_bit_for_bit(real, whole):
    place = real()
    job = place.job()
    wait_for_line(place.run, EVERY + 2)
    for pid in place.notes("tasks")[0].split():
        os.kill(int(pid), signal.SIGTERM)
    said = job.communicate(timeout=300)[1]
    assert place.notes("scontrol") == ["show job 1234", "requeue 1234"], said
    assert summary(place.run)["status"] == "stopped"
    again = place.job(SLURM_RESTART_COUNT="1")
    said = again.communicate(timeout=300)[1]
    assert again.returncode == 0, said
    assert len(place.notes("scontrol")) == 2
    assert_gone_on(place.run, whole, said, lost=1)


@pytest.mark.slow
def test_hosts_that_restart_by_themselves_meet_again(real, whole):
    """Each process has its own loop, like the pods of jobset.yml. Process 0 is killed."""
    place, port = real(), free_port()
    run = [f"hydra.run.dir={place.run}", "resume=auto", "mesh.processes=2"]
    env = {name: value for name, value in place.env.items() if not name.startswith("SLURM_")}
    with contextlib.ExitStack() as stack:
        loops = []
        for process in range(2):
            own = [f"mesh.coordinator=localhost:{port}", f"mesh.process={process}"]
            words = [sys.executable, "-m", "rl4p.train", *SMALL, *STEPS, *run, *own]
            line = ["bash", str(RESTARTING), str(place.run), *words]
            loops.append(subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True))
            stack.callback(loops[-1].kill)
        wait_for_line(place.run, EVERY + 2)
        children = Path(f"/proc/{loops[0].pid}/task/{loops[0].pid}/children").read_text()
        os.kill(int(children), signal.SIGKILL)
        said = [loop.communicate(timeout=300)[1] for loop in loops]
    assert [loop.returncode for loop in loops] == [0, 0], "\n".join(said)
    assert "Exit code 137" in said[0]
    # JAX aborts a process without its coordinator, unless that process has ended itself before.
    assert re.search(r"Exit code (1|134): .* starts again", said[1]), said[1]
    assert_gone_on(place.run, whole, said[0])
