"""Tests the tracker of MLflow, and the SQLite file that it creates."""

import base64
import dataclasses
import fcntl
import getpass
import json
import math
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from mlflow.exceptions import MlflowException

from rl4p.base.errors import InputError
from rl4p.runs.tracker import mlflow as databases
from rl4p.runs.tracker import mlflow as tracking
from rl4p.runs.tracker.mirror import COMMIT, IDENTITY, PARENT, mlflow_key
from rl4p.runs.tracker.mlflow import ID, KIND, NAME, TRAINING, URI, MLflow, complete
from rl4p.tools.runs import read_experiment
from tests.support.trackers import only_run, wait_for

# Ends as kill -9 does, before the n-th statement that the program sends to a database.
INTERRUPTED = """
import itertools, os, sys, sqlalchemy
from rl4p.runs.tracker import mlflow as tracking
from rl4p.runs.tracker.mlflow import MLflow
number = itertools.count()
@sqlalchemy.event.listens_for(sqlalchemy.Engine, "before_cursor_execute")
def end(*_):
    if next(number) == int(sys.argv[2]):
        os._exit(9)
if sys.argv[3] == "as MLflow does":
    tracking.create_if_missing = lambda database, create: None
MLflow(uri=sys.argv[1]).connect()
"""


def lock_of(database):
    return database.with_name(f".{database.name}.rl4p.lock")


def interrupted(path, statement, how):
    """Creates a store in a process that ends before a statement."""
    words = [f"sqlite:///{path}", str(statement), how]
    assert subprocess.run([sys.executable, "-c", INTERRUPTED, *words], check=False).returncode == 9


def sent(store, record):
    """Returns the metrics of the run after it was mirrored."""
    record.log(0, {"reward/mean": 0.5})
    assert store.open(record.folder).finish("finished")
    return only_run(store).data.metrics


# 12 is in the first tables, 40 and 200 are in migrations; the others check the same
STATEMENTS = [pytest.param(n, marks=() if n == 40 else pytest.mark.slow) for n in (0, 12, 40, 200)]


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_creation_that_is_killed_leaves_no_database(statement, record, tmp_path):
    path = tmp_path / "mlflow.db"
    interrupted(path, statement, "as rl4p does")
    assert not path.exists()
    assert list(tmp_path.glob(".mlflow.db.rl4p.*/first.db"))
    store = MLflow(uri=f"sqlite:///{path}", close_timeout_seconds=60.0)
    assert sent(store, record) == {"reward/mean": 0.5}
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        ".mlflow.db.rl4p.lock", "mlartifacts", "mlflow.db", "runs"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS[1:])
def test_a_database_that_another_program_left_incomplete_is_set_aside(
    statement, record, tmp_path, monkeypatch, caplog
):
    path = tmp_path / "mlflow.db"
    interrupted(path, statement, "as MLflow does")
    assert path.exists()
    assert not complete(path)
    before = path.read_bytes()
    monkeypatch.setattr(databases, "SECONDS_OF_SILENCE", 0.0)
    (tmp_path / "mlflow.db.incomplete").write_text("an earlier one")
    store = MLflow(uri=f"sqlite:///{path}", close_timeout_seconds=60.0)
    assert sent(store, record) == {"reward/mean": 0.5}
    assert (tmp_path / "mlflow.db.incomplete").read_text() == "an earlier one"
    assert (tmp_path / "mlflow.db.incomplete1").read_bytes() == before
    (message,) = [each.getMessage() for each in caplog.records if each.name.startswith("rl4p")]
    assert message == (
        f"{path} is incomplete, because the program that created it was interrupted. It has no"
        " experiment. It is now mlflow.db.incomplete1, and a new database takes its place."
    )


@pytest.mark.slow
def test_a_database_that_another_program_is_creating_is_waited_for(template, tmp_path, monkeypatch):
    """The other program ends while this one waits for it."""
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as begun:
        begun.execute("CREATE TABLE experiments (name TEXT, lifecycle_stage TEXT)")
    begun.close()
    waited = []
    monkeypatch.setattr(
        databases.time, "sleep", lambda x: waited.append(x) or shutil.copy(template, path)
    )
    client, _ = MLflow(uri=f"sqlite:///{path}").connect()
    assert waited
    assert client.get_experiment_by_name("template") is not None
    assert not list(tmp_path.glob("*.incomplete"))


@pytest.mark.slow
def test_a_store_is_created_where_a_link_points(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "there.db")
    MLflow(uri=f"sqlite:///{tmp_path}/link.db").connect()
    assert (tmp_path / "link.db").is_symlink()
    assert complete(tmp_path / "there.db")


def test_a_complete_database_needs_no_lock(template, tmp_path):
    store = MLflow(uri=f"sqlite:///{shutil.copy(template, tmp_path)}")
    client = store.client()
    assert client.get_experiment_by_name("template") is not None
    assert not lock_of(store._database).exists()


def connections(database):
    """Returns how many files this process has open of a database, and of its journal."""
    opened = (str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return sum(name.startswith(str(database)) for name in opened)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["create", "connect", "send", "find", "read", "write"])
def test_each_connection_to_a_file_is_closed_after_its_use(template, tmp_path, record, use):
    path = tmp_path / "mlflow.db"
    if use != "create":
        shutil.copy(template, path)
    store = MLflow(uri=f"sqlite:///{path}", close_timeout_seconds=60.0)
    client, experiment = store.connect()
    match use:
        case "send":
            sent(store, record)
        case "find":
            client.search_experiments()
            with pytest.raises(MlflowException):
                client.get_run("none")
        case "read":
            with pytest.raises(InputError, match="has no run of rl4p"):
                read_experiment("rl4p", store.uri, ())
        case "write":
            client.create_run(experiment, tags={PARENT: "a"})
    assert connections(path) == 0


def test_the_pool_of_the_user_stays(template, tmp_path, monkeypatch):
    monkeypatch.setenv(tracking.SIZES[0], "3")
    monkeypatch.delenv(tracking.POOL, raising=False)
    monkeypatch.setattr("mlflow.MlflowClient", str)  # it would leave its connections open
    path = shutil.copy(template, tmp_path)
    assert MLflow(uri=f"sqlite:///{path}").client() == f"sqlite:///{path}"
    assert tracking.POOL not in os.environ


def test_a_file_of_another_program_stays_as_it_is(tmp_path):
    for name, table in (("tables", "cookies"), ("experiments", "experiments")):
        with sqlite3.connect(tmp_path / f"{name}.db") as database:
            database.execute(f"CREATE TABLE {table} (name TEXT)")
        database.close()
    (tmp_path / "text.db").write_text("precious\n" * 50)
    (tmp_path / "cut.db").write_bytes((tmp_path / "tables.db").read_bytes()[:100])
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "text.db")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for name in ("tables", "experiments", "text", "cut", "folder", "link"):
        with pytest.raises(InputError, match="is not a database of MLflow: name a new file"):
            MLflow(uri=f"sqlite:///{tmp_path}/{name}.db")
    assert before == {path: path.read_bytes() for path in before}
    (tmp_path / "empty.db").touch()
    MLflow(uri=f"sqlite:///{tmp_path}/empty.db")


@pytest.mark.slow
def test_the_lock_of_another_program_stays_as_it_is(tmp_path):
    (tmp_path / "uv.lock").write_text("precious\n")
    MLflow(uri=f"sqlite:///{tmp_path}/uv").connect()
    assert (tmp_path / "uv.lock").read_text() == "precious\n"
    assert lock_of(tmp_path / "uv").read_bytes() == b""
    MLflow(uri=f"sqlite:///{tmp_path}/uv")  # is MLflow's now


def runs_in(tracker):
    client, experiment = tracker.connect()
    return client, client.search_runs([experiment], order_by=["attributes.start_time"])


def history_in(client, run, key):
    return [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, key)]


def step(record, tracked, number, **metrics):
    """Logs a step as the loop does."""
    metrics = {"reward/mean": number / 10, "time/step": 2.0, **metrics}
    record.log(number, metrics)
    tracked.log(number, metrics)


def test_a_whole_run_is_mirrored(store, record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hydra = record.folder / ".hydra"
    hydra.mkdir()
    (hydra / "hydra.yaml").write_text(
        "hydra: {runtime: {choices: {advantage: dr_grpo, model: tiny}}}"
    )
    (hydra / "overrides.yaml").write_text("[advantage=dr_grpo, +update.clip_high=0.3]")
    tracked = store.open(record.folder)
    for number in range(4):
        step(record, tracked, number)
    record.log_samples(3, [{"response": "1+1=2"}])
    record.write_summary({"status": "finished"})
    (record.folder / "plots").mkdir()
    (record.folder / "plots/learning_curve.png").write_bytes(b"png")
    tracked.artifact(record.folder / "plots/learning_curve.png")
    assert tracked.finish("finished")

    client, (run,) = runs_in(store)
    assert run.info.run_name == "advantage=dr_grpo update.clip_high=0.3"
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "seed": "3",
        "steps": "4",
        "group_size": "8",
        "advantage": "dr_grpo",
        "model": "tiny",
        "model.path": "policies/tiny",
        "data": "rl4p.data.files.JSONL",
        "optimizer": "rl4p.learner.optimizer.AdamW",
        "optimizer.learning_rate": "0.0002",
        "update.clip_high": "0.3",
    }
    tags = {"git_commit": "0a1b2c", COMMIT: "0a1b2c", "device": "cpu", "status": "finished"}
    assert run.data.tags.items() >= (tags | {"folder": str(record.folder)}).items()
    start = run.info.start_time
    assert history_in(client, run, "reward/mean") == [
        (number, number / 10, start + 2000 * (number + 1)) for number in range(4)
    ]
    artifacts = tmp_path / "outputs/mlartifacts" / run.info.run_id / "artifacts"
    for name in ("config.yaml", "environment.json", "samples.jsonl", "plots/learning_curve.png"):
        assert (artifacts / name).read_bytes() == (record.folder / name).read_bytes()
    assert not (tmp_path / "mlruns").exists()


def test_the_columns_source_user_commit_and_dataset_are_filled(store, record, monkeypatch):
    monkeypatch.setenv(tracking.PARENT_VARIABLE, "0a1b")
    assert store.open(record.folder).finish("finished")
    run = only_run(store)
    assert run.data.tags["mlflow.source.name"] == "rl4p.train"
    assert run.data.tags["mlflow.source.type"] == "LOCAL"
    assert run.data.tags["mlflow.user"] == run.info.user_id == getpass.getuser()
    assert run.data.tags["command"] == "python -m rl4p.train"
    assert run.data.tags[PARENT] == "0a1b"  # the child of a sweep's run
    inputs = {i.tags[0].value: i.dataset for i in run.inputs.dataset_inputs}
    training, evaluation = inputs["training"], inputs["evaluation"]
    assert (training.name, training.digest, training.source_type) == ("jsonl", "0a1b", "code")
    assert json.loads(training.source)["tags"]["_target_"] == "rl4p.data.files.JSONL"
    assert json.loads(training.profile) == {"num_rows": 9}
    assert json.loads(evaluation.source) == {"uri": "test.jsonl"}
    assert store.open(record.folder).finish("finished")
    run = only_run(store)
    assert len(run.inputs.dataset_inputs) == 2  # a resumed run does not repeat them


def test_an_experiment_opens_in_the_view_for_training_or_the_one_that_the_user_chose(store):
    client, experiment = store.connect()
    assert client.get_experiment(experiment).tags[KIND] == TRAINING
    by_hand, chosen = (client.create_experiment(name) for name in ("by hand", "chosen"))
    client.set_experiment_tag(chosen, KIND, "genai_development")
    for name in ("by hand", "chosen"):
        dataclasses.replace(store, experiment=name).connect()
    assert client.get_experiment(by_hand).tags[KIND] == TRAINING
    assert client.get_experiment(chosen).tags[KIND] == "genai_development"


@pytest.mark.slow
def test_the_machine_is_measured_on_request(store, record, monkeypatch):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.02")
    client, _ = store.connect()
    tracked = dataclasses.replace(store, system_metrics=True).open(record.folder)
    wait_for(lambda: runs_in(store)[1])
    (run,) = runs_in(store)[1]
    name = "system/cpu_utilization_percentage"
    wait_for(lambda: name in client.get_run(run.info.run_id).data.metrics)
    assert tracked.finish("finished")
    assert [thread.name for thread in threading.enumerate()].count("SystemMetricsMonitor") == 0
    assert client.get_run(run.info.run_id).info.status == "FINISHED"


def test_names_and_numbers_that_mlflow_refuses(store, record):
    tracked = store.open(record.folder)
    odd = {"eval/a (b), @1/x": 1.0, "eval/a [b], @1/x": 2.0, "/eval//../y/": 3.0, "z" * 300: 4.0}
    step(record, tracked, 1, **odd, nan=math.nan, high=math.inf, low=-math.inf)
    assert tracked.finish("failed")
    run = only_run(store)
    assert run.info.status == "FAILED"
    metrics = run.data.metrics
    for name, value in odd.items():
        assert metrics[mlflow_key(name)] == value
    assert math.isnan(metrics["nan"])
    assert metrics["high"] > 1e308
    assert metrics["low"] < -1e308


@pytest.mark.slow
def test_a_step_divided_over_batches_is_sent_whole_though_a_batch_fails(store, record, caplog):
    for number in range(3):
        record.log(number, {f"m{i:03}": i for i in range(700)})
    with closing(sqlite3.connect(store._database, isolation_level=None)) as database:
        database.execute(
            "create trigger fail before insert on metrics when new.key = 'm699' and new.step = 1"
            " begin select raise(abort, 'disk full'); end"
        )
        tracked = store.open(record.folder)
        tracked.log(2, {})
        wait_for(lambda: caplog.records)
        database.execute("drop trigger fail")
    assert tracked.finish("finished")
    client, (run,) = runs_in(store)
    for key in ("m000", "m699"):
        assert [s for s, *_ in history_in(client, run, key)] == [0, 1, 2]


def test_a_resumed_run_goes_on_in_the_same_run_and_repeats_no_step(store, record, caplog):
    tracked = store.open(record.folder)
    for number in range(4):
        step(record, tracked, number)
    assert tracked.finish("stopped")
    client, (run,) = runs_in(store)
    assert run.info.status == "KILLED"

    config = yaml.safe_load((record.folder / "config.yaml").read_text())
    record.describe(config | {"steps": 6}, {})  # MLflow does not allow changing a parameter
    tracked = store.open(record.folder)
    wait_for(lambda: client.get_run(run.info.run_id).info.status == "RUNNING")
    tracked.artifact(record.folder / "config.yaml")
    wait_for(lambda: not tracked._files)  # the thread has nothing left to send
    record.truncate_after(2)
    for number in range(3, 6):
        step(record, tracked, number, **{"time/step": 9.0, "reward/longer_lines_than_before": 1.0})
    assert tracked.finish("finished")
    client, (run,) = runs_in(store)
    assert run.info.status == "FINISHED"
    assert [s for s, *_ in history_in(client, run, "reward/mean")] == list(range(6))
    assert not caplog.records


def test_a_batch_sent_twice_stands_there_once(store, record):
    """The store received the batch, but the process died before recording that."""
    tracked = store.open(record.folder)
    for number in range(3):
        step(record, tracked, number)
    assert tracked.finish("stopped")
    client, (run,) = runs_in(store)
    client.set_tag(run.info.run_id, "rl4p.sent", "0")
    assert store.open(record.folder).finish("stopped")
    assert [s for s, *_ in history_in(client, run, "reward/mean")] == [0, 1, 2]


@pytest.mark.slow
def test_a_run_deleted_in_mlflow_is_made_anew(store, record):
    step(record, tracked := store.open(record.folder), 1)
    assert tracked.finish("finished")
    client, (deleted,) = runs_in(store)
    client.delete_run(deleted.info.run_id)
    assert store.open(record.folder).finish("finished")
    run = only_run(store)
    assert run.info.run_id != deleted.info.run_id
    assert run.data.tags[IDENTITY] == deleted.data.tags[IDENTITY]
    assert run.data.metrics["reward/mean"] == 0.1


@pytest.mark.slow
def test_no_call_waits_for_a_store_that_is_busy(store, record, caplog, monkeypatch):
    monkeypatch.setattr(tracking, "CREATION_SECONDS", 0.1)
    with lock_of(store._database).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process migrates and never ends
        tracked = MLflow(uri=store.uri, close_timeout_seconds=0.05).open(record.folder)
        for number in range(1000):
            step(record, tracked, number)
        tracked.artifact(record.folder / "config.yaml")
        assert not tracked.finish("finished")
        assert [r.getMessage() for r in caplog.records] == [
            f"MLflow at {store.uri} lacks a part of this run (it was too slow or did not answer);"
            f" send it with: python -m rl4p.send run={record.folder}"
        ]
    assert len(record.metrics()) == 1000
    tracked._ended.wait()  # the thread ends when the lock is free


def test_a_server_that_is_down_costs_two_sentences(dead, record, caplog):
    tracked = MLflow(uri=dead).open(record.folder)
    wait_for(lambda: caplog.records)
    for number in range(3):
        step(record, tracked, number)
    assert not tracked.finish("finished")
    assert len(record.metrics()) == 3
    during, at_the_end = [r.getMessage() for r in caplog.records]
    assert during.startswith(f"The run continues without MLflow at {dead} until it answers: ")
    assert "ConnectionRefusedError" in during
    assert len(during) < 200
    assert at_the_end.endswith(f"send it with: python -m rl4p.send run={record.folder}")


@pytest.mark.slow
def test_a_process_ends_though_its_server_never_answers(record):
    program = (
        "import sys, pathlib; from rl4p.runs.record import Record\n"
        "from rl4p.runs.tracker.mlflow import MLflow\n"
        "record = Record(pathlib.Path(sys.argv[2]))\n"
        "tracked = MLflow(uri=sys.argv[1], close_timeout_seconds=0.1).open(record.folder)\n"
        "sys.stdin.readline()\n"
        "for step in range(5):\n"
        "    record.log(step, {'a': 1.0}); tracked.log(step, {'a': 1.0})\n"
        "print(tracked.finish('finished'))\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-c", program, address, str(record.folder)],
            env=os.environ | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1000"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = server.accept()  # the thread has sent a request and waits
        with connection:
            out, err = process.communicate("go on\n", timeout=60)
    assert process.returncode == 0
    assert out == "False\n"
    assert err.count("\n") == 1
    assert (
        "(it was too slow or did not answer); send it with: "
        f"python -m rl4p.send run={record.folder}" in err
    )
    assert len(record.metrics()) == 5


def test_a_store_that_fails_midway_gets_the_rest_when_it_is_back(
    store, record, caplog, monkeypatch
):
    attempts, connect = [], MLflow.connect
    monkeypatch.setattr(MLflow, "connect", lambda self: attempts.append(1) or connect(self))
    with closing(sqlite3.connect(store._database, isolation_level=None)) as database:
        tracked = store.open(record.folder)
        step(record, tracked, 0)
        sent = "select count(*) from metrics where key = 'reward/mean'"
        wait_for(lambda: database.execute(sent).fetchone() == (1,))
        database.execute("alter table metrics rename to away")
        step(record, tracked, 1)
        wait_for(lambda: caplog.records)
        before = len(attempts)
        wait_for(lambda: len(attempts) > before + 1)  # two more attempts
        database.execute("alter table away rename to metrics")
    step(record, tracked, 2)
    assert tracked.finish("finished")
    client, (run,) = runs_in(store)
    assert [s for s, *_ in history_in(client, run, "reward/mean")] == [0, 1, 2]
    (warning,) = [record for record in caplog.records if record.name.startswith("rl4p")]
    assert "no such table: metrics" in warning.getMessage()


@pytest.mark.slow
def test_processes_that_start_at_once_share_a_fresh_database(tmp_path):
    program = (
        "import sys, pathlib; from rl4p.runs.record import Record\n"
        "from rl4p.runs.tracker.mlflow import MLflow\n"
        "record = Record(pathlib.Path(sys.argv[1])); record.folder.mkdir()\n"
        "record.describe({'seed': 0}, {}); record.log(0, {'a': 1.0})\n"
        "tracker = MLflow(uri='sqlite:///outputs/mlflow.db', close_timeout_seconds=120.0)\n"
        "sys.exit(not tracker.open(record.folder).finish('finished'))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, f"run{i}"], cwd=tmp_path) for i in range(4)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    _, runs = runs_in(MLflow(uri=f"sqlite:///{tmp_path}/outputs/mlflow.db"))
    assert [run.data.metrics for run in runs] == [{"a": 1.0}] * 4


def test_a_relative_database_is_one_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = MLflow(uri="sqlite:///outputs/mlflow.db")
    assert tracker.uri == f"sqlite:///{tmp_path}/outputs/mlflow.db"
    assert MLflow(uri=tracker.uri).uri == tracker.uri


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"uri": "http://me:secret@host:5000"}, "tracker.uri contains a password"),
        ({"uri": "outputs/mlflow.db"}, "has no scheme: write sqlite:///PATH"),
        ({"uri": ""}, "tracker.uri= has no scheme"),
        ({"experiment": ""}, "tracker.experiment is empty"),
        ({"uri": "sqlite:///x", "register": "a/b"}, r"tracker\.register=a/b contains / or :"),
    ],
)
def test_options_that_cannot_be_meant(options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        MLflow(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "options", "uri", "experiment"),
    [
        ({}, {}, "sqlite:///{here}/outputs/mlflow.db", "rl4p"),
        ({URI: "sqlite:///own.db"}, {}, "sqlite:///{here}/own.db", "rl4p"),
        ({URI: "sqlite:///{here}/own.db"}, {}, "sqlite:///{here}/own.db", "rl4p"),
        ({URI: "sqlite:///a.db"}, {"uri": "sqlite:///b.db"}, "sqlite:///{here}/b.db", "rl4p"),
        ({URI: ""}, {}, "sqlite:///{here}/outputs/mlflow.db", "rl4p"),
        ({NAME: "mine"}, {}, "sqlite:///{here}/outputs/mlflow.db", "mine"),
        ({NAME: "mine"}, {"experiment": "b"}, "sqlite:///{here}/outputs/mlflow.db", "b"),
        ({ID: "0"}, {}, "sqlite:///{here}/outputs/mlflow.db", "Default"),
        ({NAME: "mine", ID: "0"}, {}, "sqlite:///{here}/outputs/mlflow.db", "mine"),
        ({ID: "0"}, {"experiment": "b"}, "sqlite:///{here}/outputs/mlflow.db", "b"),
    ],
)
def test_mlflows_variables_decide_where_the_configuration_says_nothing(
    variables, options, uri, experiment, template, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(here=tmp_path))
    tracker = MLflow(**options)
    assert tracker.uri == uri.format(here=tmp_path)
    shutil.copy(template, tracker._database)
    client, number = tracker.connect()
    assert client.get_experiment(number).name == experiment


@pytest.mark.parametrize(
    ("value", "option", "measures"),
    [(None, None, False), ("true", None, True), ("false", None, False), ("true", False, False),
     ("1", None, True), (None, True, True)],
)  # fmt: skip
def test_a_variable_measures_the_machine_unless_the_configuration_says(
    value, option, measures, monkeypatch
):
    if value is not None:
        monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", value)
    assert MLflow(system_metrics=option).system_metrics is measures


@pytest.mark.parametrize("name", ["MLFLOW_RUN_ID", "MLFLOW_RUN_NAME", "MLFLOW_RUN_CONTEXT"])
def test_a_variable_without_effect_is_named(name, store, record, caplog, monkeypatch):
    monkeypatch.setenv(name, "abc")
    assert store.open(record.folder).finish("finished")
    (message,) = caplog.messages
    assert message.startswith(f"{name} has no effect: a run is found in MLflow by its tag rl4p.run")


def test_a_variable_that_names_no_store_is_refused_by_its_name(monkeypatch):
    for value, said in (("http://me:secret@host", "contains a passw"), ("a/b", "=a/b has no sch")):
        monkeypatch.setenv(URI, value)
        with pytest.raises(InputError, match=f"{URI}.*{said}") as caught:
            MLflow()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"MLFLOW_TRACKING_TOKEN": "abc"}, "Bearer abc"),
        (
            {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "secret"},
            "Basic " + base64.b64encode(b"me:secret").decode(),
        ),
    ],
)
def test_credentials_of_the_environment_are_sent(serve, variables, sent, monkeypatch):
    asked = serve(lambda body, number: (404, {}, b"{}"))
    monkeypatch.setenv(URI, asked.url)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MlflowException):
        MLflow().client().create_experiment("a")
    assert asked.headers[0]["Authorization"] == sent


def test_what_the_user_has_set_of_mlflow_stays(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "x")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    store.connect()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
