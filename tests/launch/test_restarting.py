"""Tests when the loop of all launch scripts starts a run again, and when it stops."""

import fcntl
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rl4p.base.errors import OutOfTime, RunError
from tests.support.launch import LAUNCH, RESTARTING, STOPPED, WRONG, write

SCRIPTS = sorted(LAUNCH.glob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_bash_that_may_be_executed(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (0, "the run in {run} has finished"),
        (WRONG, "the configuration or an input is wrong, and a restart cannot help"),
        (STOPPED, "the run in {run} was told to stop, and can be resumed"),
        (OutOfTime.exit_code, "the run in {run} was told to stop, and can be resumed"),
    ],
)
def test_some_exit_codes_stop_at_once(place, code, sentence):
    place.plan(f"{code} 5 4", "0 9 8")
    done = place.restarting()
    assert done.returncode == code
    assert place.notes("starts") == ["-m rl4p.train seed=1"]
    assert f"Exit code {code}: {sentence.format(run=place.run)}." in done.stderr


@pytest.mark.parametrize("code", [RunError.exit_code, 5, 127, 134, "KILL", 139, 255])
def test_any_other_exit_code_starts_again(place, code):
    place.plan(f"{code} 5 4", "0 9 8")
    done = place.restarting()
    assert done.returncode == 0
    assert place.notes("starts") == ["-m rl4p.train seed=1"] * 2
    number = 128 + signal.SIGKILL if code == "KILL" else code
    assert f"Exit code {number}: the run in {place.run} starts again" in done.stderr


def test_each_start_says_from_where(place):
    place.plan("1 -1 -1", "1 3 -1", "1 7 4", "0 9 8")
    said = place.restarting().stderr
    begins, anew, resumes = (
        f"The run in {place.run} {rest}.\n"
        for rest in (
            "begins",
            "begins anew, because it has no checkpoint",
            "resumes from step 4; its last step was 7",
        )
    )
    assert said.count(begins) == 2
    assert said.index(anew) < said.index(resumes)


@pytest.mark.parametrize(("limit", "starts"), [(0, 1), (2, 3)])
def test_a_run_without_progress_is_given_up(place, limit, starts):
    place.plan(*["1 7 4"] * 9)
    done = place.restarting(MAX_RESTARTS=limit)
    assert done.returncode == 1
    assert len(place.notes("starts")) == starts
    if limit:
        assert "this stops after 2 restarts without a new step or checkpoint" in done.stderr


def test_ten_restarts_without_progress_are_the_limit(place):
    place.plan(*["134 -1 -1"] * 20)
    done = place.restarting()
    assert (done.returncode, len(place.notes("starts"))) == (134, 11)


@pytest.mark.parametrize("progress", [(1, 0), (0, 1)], ids=["a step", "a checkpoint"])
def test_progress_lifts_the_limit(place, progress):
    step, checkpoint = progress
    place.plan(*(f"1 {9 + i * step} {8 + i * checkpoint}" for i in range(4)), "0 30 30")
    assert place.restarting(MAX_RESTARTS=1).returncode == 0
    assert len(place.notes("starts")) == 5


def test_a_step_that_is_repeated_is_no_progress(place):
    """A resumed run repeats the steps after its checkpoint, so its last step may fall and rise."""
    place.plan("1 7 4", "1 5 4", "1 7 4", "1 6 4", "0 9 8")
    assert place.restarting(MAX_RESTARTS=2).returncode == 1
    assert len(place.notes("starts")) == 3


def test_the_progress_of_a_run_is_printed(place):
    assert place.call(RESTARTING, place.run).stdout == "-1 -1\n"
    for name in ("8", "12", "12.damaged", "80.left", "16.orbax-checkpoint-tmp"):
        (place.run / "checkpoints" / name).mkdir(parents=True)
    rows = [{"a": 1.0, "step": i, "time/step": 0.5} for i in (8, 9, 10)]
    text = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    (place.run / "metrics.jsonl").write_text(text)
    assert place.call(RESTARTING, place.run).stdout == "10 12\n"
    (place.run / "metrics.jsonl").write_text(text[:-25])  # killed while it wrote
    assert place.call(RESTARTING, place.run).stdout == "9 12\n"


def test_a_folder_that_is_in_use_is_waited_for(place):
    place.plan("0 9 8")
    place.run.mkdir()
    line = ["bash", RESTARTING, place.run, "python"]
    with (place.run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place.restarting(FOLDER_WAIT=0.05, MAX_RESTARTS=1)
        assert (done.returncode, place.notes("starts")) == (1, [])
        assert done.stderr.count("Another process uses") == 2
        waiting = subprocess.Popen(line, env=place.env, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert "Another process uses" in waiting.stderr.readline()
        assert not place.notes("starts")
    assert "The run in" in waiting.communicate(timeout=10)[1]
    assert (waiting.returncode, len(place.notes("starts"))) == (0, 1)


# Notes each SIGTERM, and ends a moment after the first with a code.
STUBBORN = """#!/bin/bash
trap 'echo TERM >>"$NOTES/signals"; (sleep 0.1; kill -USR1 $$) &' TERM
trap 'exit $CODE' USR1
echo started >>"$NOTES/starts"
for _ in {1..100}; do sleep 0.05; done
"""


@pytest.mark.parametrize("code", [STOPPED, RunError.exit_code])
@pytest.mark.parametrize("by_slurm", [False, True])
def test_a_signal_is_passed_on_and_ends_the_restarts(place, code, by_slurm):
    write(place.folder / "bin" / "python", STUBBORN)
    env = place.env | {"CODE": str(code)} | ({"PASS_ON": "no"} if by_slurm else {})
    line = ["bash", RESTARTING, place.run, "python"]
    loop = subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True)
    while not place.notes("starts"):
        time.sleep(0.01)
    loop.terminate()
    if by_slurm:  # which signals the task too
        time.sleep(0.05)
        assert not place.notes("signals")
        children = f"/proc/{loop.pid}/task/{loop.pid}/children"
        os.kill(int(Path(children).read_text()), signal.SIGTERM)
    said = loop.communicate(timeout=10)[1]
    assert loop.returncode == code, said
    assert (place.notes("starts"), place.notes("signals")) == (["started"], ["TERM"])


def test_a_signal_before_a_restart_stops(place):
    place.plan("1 7 4", "0 9 8")
    env = place.env | {"RESTART_WAIT": "60"}
    line = ["bash", RESTARTING, place.run, "python"]
    loop = subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True)
    assert loop.stderr is not None
    for said in loop.stderr:
        if "starts again" in said:
            break
    loop.terminate()
    assert "Stopped by the signal TERM" in loop.communicate(timeout=10)[1]
    assert (loop.returncode, len(place.notes("starts"))) == (STOPPED, 1)


def test_what_cannot_be_made_ready_is_tried_again(place):
    place.plan("0 9 8")
    ready = f"echo ready >>{place.folder}/ready; [ $(wc -l <{place.folder}/ready) = 3 ]"
    assert place.restarting(READY=ready).returncode == 0
    assert (len(place.notes("ready")), len(place.notes("starts"))) == (3, 1)
    assert place.restarting(READY="false", MAX_RESTARTS=2).returncode == 1
    assert len(place.notes("starts")) == 1
