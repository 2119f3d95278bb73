import json

import pytest
import yaml

from rl4p.configuration.folder import only_run_in
from rl4p.configuration.sweep import (
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
