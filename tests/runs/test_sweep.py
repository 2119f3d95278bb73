"""Tests a sweep in its folder, and sweeps of real runs: their ends, and resuming."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import pytest
import yaml

from rl4p.runs.folder import only_run_in
from rl4p.runs.sweep import (
    State,
    Sweep,
    SweepJob,
    ended_jobs,
    failure,
    named,
    print_report,
    read_jobs,
    set_aside,
    state,
    write_failure,
    write_jobs,
)
from tests.support.runs import assert_same_checkpoint, lines, summary

JOBLIB = ("hydra/launcher=joblib",)
SUBMITIT = ("hydra/launcher=submitit_local",)


def runs_in(uri: str, name: str = "rl4p") -> list:
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


@pytest.mark.slow
def test_a_sweep_is_one_parent_and_a_child_a_job(train, tmp_path: Path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    process = train(
        "-m", "advantage=grpo,rloo", "seed=0,1", "steps=1", "tracker=mlflow", f"tracker.uri={uri}",
        f"hydra.sweep.dir={tmp_path / 'sweep'}", cwd=tmp_path,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    runs = runs_in(uri)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 1
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert {(run.data.params["advantage"], run.data.params["seed"]) for run in children} == {
        ("grpo", "0"), ("grpo", "1"), ("rloo", "0"), ("rloo", "1"),
    }  # fmt: skip
    assert {run.info.status for run in children} == {"FINISHED"}
    assert all("update/loss" in run.data.metrics for run in children)
    groups = {"IQM/advantage: grpo", "IQM/advantage: rloo"}
    assert parents[0].data.metrics.keys() == groups
    files = mlflow.MlflowClient(uri).list_artifacts(parents[0].info.run_id, "compare")
    assert {"compare/index.html", "compare/curve.pdf"} <= {file.path for file in files}
    assert "no parent run" not in process.stderr
    assert process.stdout.count("The runs in MLflow") == 1  # the sweep's, and not its jobs'


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [pytest.param((*JOBLIB, "hydra.launcher.n_jobs=8"), id="joblib"),
     pytest.param(SUBMITIT, id="submitit")],
)  # fmt: skip
def test_eight_parallel_jobs_share_a_fresh_database(train, tmp_path: Path, launcher):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    process = train(
        "-m", "seed=0,1,2,3,4,5,6,7", "steps=2", *launcher, "tracker=mlflow",
        f"tracker.uri={uri}", "tracker.close_timeout_seconds=120",
        f"hydra.sweep.dir={tmp_path / 'sweep'}", cwd=tmp_path,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "8 jobs, 8 finished" in process.stdout
    children = [run for run in runs_in(uri) if "mlflow.parentRunId" in run.data.tags]
    assert sorted(run.data.params["seed"] for run in children) == [str(n) for n in range(8)]
    assert {run.info.status for run in children} == {"FINISHED"}
    for run in children:
        recorded = lines(Path(run.data.tags["folder"]))
        assert run.data.metrics["update/loss"] == recorded[-1]["update/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), (*JOBLIB, "hydra.launcher.n_jobs=2"), SUBMITIT], ids=str)
def test_the_other_jobs_run_when_one_fails_and_the_end_says_which(train, tmp_path, launcher):
    folder = tmp_path / "sweep"
    arguments = ("-m", "update=sft,ppo", "seed=0,1")  # sft takes no advantages, as the run finds
    process = train(*arguments, "steps=1", *launcher, f"hydra.sweep.dir={folder}", cwd=tmp_path)
    assert process.returncode == 2
    assert {path.parent.name for path in folder.glob("*/summary.json")} == {"2", "3"}
    assert "4 jobs, 2 finished, 2 failed" in process.stdout
    for seed in (0, 1):
        failed = json.loads((folder / str(seed) / "failure.json").read_text())
        assert f"  failed: update=sft seed={seed}\n    {failed['error']}\n" in process.stdout
        assert failed["exit_code"] == 2
    page = folder / "compare" / "index.html"
    assert page.exists()
    assert str(page) in process.stdout
    assert set(json.loads((folder / "compare/compare.json").read_text())) >= {"groups"}


STEPS = ("steps=6", "checkpoint.every=2")
GRID = ("-m", "seed=0,1,2")
JOBS = ("0", "1", "2")


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    assert train(*GRID, *STEPS, f"hydra.sweep.dir={folder}").returncode == 0
    for job in JOBS:
        assert sum(row.get("update/grad_norm", 0.0) > 0 for row in lines(folder / job)) >= 3
    return folder


def killed_in(job: Path, command: list[str], number: signal.Signals) -> str:
    """Starts a sweep in a process group, and signals the group after a checkpoint of the job."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    while process.poll() is None and not (job / "checkpoints/2").exists():
        time.sleep(0.002)
    assert process.poll() is None, f"The sweep ended first:\n{process.communicate()[0]}"
    os.killpg(process.pid, number)
    return process.communicate()[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        pytest.param((), signal.SIGKILL, id="killed"),
        pytest.param((), signal.SIGTERM, id="stopped"),
        pytest.param((*JOBLIB, "hydra.launcher.n_jobs=2"), signal.SIGKILL, id="joblib"),
    ],
)
def test_a_sweep_resumes_bit_for_bit(whole, command, tmp_path, launcher, number):
    folder = tmp_path / "a sweep, été"  # the command that is printed has to quote it
    line = command(*GRID, *STEPS, *launcher, f"hydra.sweep.dir='{folder}'")
    printed = killed_in(folder / "1", line, number)
    finished = {path.parent.name for path in folder.glob("*/summary.json")}
    assert finished < set(JOBS)
    if number == signal.SIGTERM:
        assert "1 stopped or killed, 1 not started" in printed
        (resumed,) = re.findall(r"Run what is left with: python (.*)\n", printed)
    else:
        resumed = f"-m rl4p.train \"resume='{folder}'\""
    before = {
        path: path.read_bytes() for name in finished for path in (folder / name).rglob("*.json*")
        if summary(folder / name)["status"] == "finished"
    }  # fmt: skip
    process = subprocess.run(
        f"{sys.executable} {resumed}", shell=True, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "3 jobs, 3 finished" in process.stdout
    assert {path: path.read_bytes() for path in before} == before
    assert 2 <= summary(folder / "1")["resumed_from"] < 6
    for job in JOBS:
        assert lines(folder / job) == lines(whole / job)
        samples = (folder / job / "samples.jsonl").read_text()
        assert samples == (whole / job / "samples.jsonl").read_text()
        assert summary(folder / job)["params_sha256"] == summary(whole / job)["params_sha256"]
        assert_same_checkpoint(folder / job, whole / job)


def test_jobs_are_written_and_read(tmp_path):
    names = "+rollout.names=[a,'b c']"
    found = named([("0", ["seed=0", names]), ("1", ["seed=1", names])])
    assert [job.own for job in found] == ["seed=0", "seed=1"]
    write_jobs(tmp_path, found)
    assert read_jobs(tmp_path) == found
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.yaml"]


@pytest.mark.parametrize(
    ("files", "steps", "expected"),
    [
        ({}, None, State.WAITING),
        ({"config": 5}, None, State.WAITING),
        ({"metrics": ""}, None, State.STOPPED),
        ({"metrics": "", "summary": "stopped"}, None, State.STOPPED),
        ({"metrics": "", "summary": "finished"}, None, State.FINISHED),
        ({"metrics": "", "summary": "finished"}, 5, State.FINISHED),
        ({"metrics": "", "summary": "finished"}, 4, State.FINISHED),
        ({"metrics": "", "summary": "finished"}, 6, State.STOPPED),
        ({"metrics": "", "summary": "finished", "config": 5}, None, State.FINISHED),
        ({"metrics": "", "summary": "finished", "config": 6}, None, State.STOPPED),
        ({"metrics": "", "summary": "failed"}, None, State.STOPPED),  # by a second Ctrl-C
        ({"metrics": "", "summary": "failed", "failure": ""}, None, State.FAILED),
        ({"metrics": "", "failure": ""}, None, State.FAILED),
        ({"failure": ""}, None, State.FAILED),
        # A later start was refused and has changed nothing.
        ({"metrics": "", "summary": "finished", "failure": ""}, None, State.FINISHED),
        ({"metrics": "", "summary": "stopped", "failure": ""}, None, State.STOPPED),
        ({"metrics": "", "broken": "{"}, None, State.STOPPED),
    ],
    ids=str,
)
def test_the_state_of_a_job_is_in_its_files(tmp_path, files, steps, expected):
    for name, text in files.items():
        if name == "metrics":
            (tmp_path / "metrics.jsonl").write_text(text)
        elif name == "summary":
            (tmp_path / "summary.json").write_text(json.dumps({"status": text, "step": 5}))
        elif name == "broken":
            (tmp_path / "summary.json").write_text(text)
        elif name == "failure":
            write_failure(tmp_path, "No.", 2)
        else:
            (tmp_path / ".hydra").mkdir()
            (tmp_path / ".hydra/config.yaml").write_text(yaml.safe_dump({"steps": text}))
    assert state(tmp_path, steps) is expected


def test_a_job_that_runs_is_neither_stopped_nor_finished(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with only_run_in(tmp_path):
        assert state(tmp_path) is State.RUNNING
    assert state(tmp_path) is State.STOPPED


def test_a_failed_job_is_kept(tmp_path):
    for text in ("first", "second", "third"):
        (tmp_path / "3").mkdir()
        (tmp_path / "3/record").write_text(text)
        set_aside(tmp_path, "3")
    kept = {path.parent.name: path.read_text() for path in tmp_path.glob("failed/*/record")}
    assert kept == {"3": "first", "3-2": "second", "3-3": "third"}
    assert not (tmp_path / "3").exists()


def test_a_failure_is_read_back(tmp_path):
    write_failure(tmp_path, "Größe is wrong.", 2)
    assert failure(tmp_path) == ("Größe is wrong.", 2)
    assert failure(tmp_path / "absent") == ("unknown", 1)


def test_the_jobs_of_a_search_are_in_the_order_of_their_numbers(tmp_path):
    for number in (*range(11, -1, -1), "notes"):
        folder = tmp_path / str(number) / ".hydra"
        folder.mkdir(parents=True)
        (folder / "overrides.yaml").write_text(yaml.safe_dump(["steps=3", f"seed={number}"]))
    search = Sweep(folder=tmp_path, jobs=(), given=(), left=None, command="")
    assert [job.own for job in ended_jobs(search)] == [
        *("seed=0", "seed=notes"),
        *(f"seed={number}" for number in range(1, 12)),
    ]


def test_the_report_names_what_failed_and_why(tmp_path, capsys):
    found = tuple(
        SweepJob(folder=str(n), overrides=(f"seed={n}",), own=f"seed={n}") for n in range(30)
    )
    (tmp_path / "1").mkdir()
    write_failure(tmp_path / "1", "One is wrong.", 1)
    sweep = Sweep(folder=tmp_path, jobs=found, given=(), left=None, command="python again")
    states = dict.fromkeys(found, State.WAITING)
    states |= {found[0]: State.FINISHED, found[1]: State.FAILED, found[2]: State.STOPPED}
    print_report(sweep, states)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        f"{tmp_path}: 30 jobs, 1 finished, 1 failed, 1 stopped or killed, 27 not started",
        "  failed: seed=1",
        "    One is wrong.",
        f"    {tmp_path / '1'}",
        "  stopped or killed: seed=2",
        f"    {tmp_path / '2'}",
    ]
    assert lines[-2:] == ["  and 9 others", "Run what is left with: python again"]
    print_report(sweep, dict.fromkeys(found[:1], State.FINISHED))
    assert capsys.readouterr().out == f"{tmp_path}: 1 job, 1 finished\n"
