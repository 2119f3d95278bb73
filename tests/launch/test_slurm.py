"""Tests the script for SLURM, with stand-ins."""

import re
import subprocess

import pytest

from rl4p.base.errors import OutOfTime
from tests.support.documents import ROOT
from tests.support.launch import LAUNCH, STOPPED, WRONG, Place


def slurm(place: Place, **env: object) -> subprocess.CompletedProcess[str]:
    job = {"SLURM_JOB_ID": 1234, "SLURM_JOB_NAME": "run", "SLURM_SUBMIT_DIR": ROOT}
    copy = place.folder / "slurm_script"  # SLURM runs a copy
    copy.write_bytes((LAUNCH / "slurm.sh").read_bytes())
    words = ("advantage=rloo", "a b")
    return place.call(copy, *words, **(job | {"RUNS": place.folder, "STATE": "RUNNING"} | env))


def test_a_job_restarts_its_processes_without_going_back_into_the_queue(place):
    place.plan("137 7 4", "0 9 8")
    assert slurm(place).returncode == 0
    words = "advantage=rloo a b mesh.processes=auto resume=auto"
    assert place.notes("starts") == [f"-m rl4p.train {words} hydra.run.dir={place.run}"] * 2
    assert place.notes("options") == ["--kill-on-bad-exit=0", "--wait=60"] * 2
    assert place.notes("scontrol") == []


@pytest.mark.parametrize("code", [STOPPED, OutOfTime.exit_code])
def test_a_job_whose_time_is_over_goes_back_into_the_queue(place, code):
    place.plan(f"{code} 7 7", "0 9 8")
    slurm(place)
    assert place.notes("scontrol") == ["show job 1234", "requeue 1234"]
    assert slurm(place, SLURM_RESTART_COUNT=1).returncode == 0
    assert len(place.notes("scontrol")) == 2


@pytest.mark.parametrize("state", ["CANCELLED", "PENDING", "COMPLETING"])
def test_a_job_that_was_cancelled_or_preempted_is_left_to_slurm(place, state):
    place.plan(f"{STOPPED} 7 7")
    done = slurm(place, STATE=state)
    assert done.returncode == STOPPED
    assert place.notes("scontrol") == ["show job 1234"]
    assert "The job was cancelled, or SLURM has put it back" in done.stderr


def test_a_job_with_a_wrong_configuration_fails(place):
    place.plan(f"{WRONG} -1 -1")
    assert slurm(place).returncode == WRONG
    assert (len(place.notes("starts")), place.notes("scontrol")) == (1, [])


def test_a_job_does_not_go_back_for_ever(place):
    place.plan(*[f"{STOPPED} -1 -1"] * 2)
    done = slurm(place, SLURM_RESTART_COUNT=100)
    assert done.returncode == STOPPED
    assert place.notes("scontrol") == ["show job 1234"]
    assert "100 times (MAX_REQUEUES)" in done.stderr
    done = slurm(place, MAX_REQUEUES=0)
    assert done.returncode == STOPPED
    assert "0 times (MAX_REQUEUES)" in done.stderr


def test_a_job_needs_a_folder_that_all_nodes_see(place):
    done = slurm(place, RUNS="", SCRATCH="")
    assert done.returncode != 0
    assert "Set RUNS to a folder on a file system that all nodes see." in done.stderr
    assert not place.notes("starts")


def test_slurm_may_put_the_job_back_itself():
    options = re.findall(r"^#SBATCH (--\S+)", (LAUNCH / "slurm.sh").read_text(), re.MULTILINE)
    assert {"--requeue", "--open-mode=append", "--signal=TERM@120"} <= set(options)
