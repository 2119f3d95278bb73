import shutil
import sqlite3
import subprocess
import sys

import pytest

from rl4p.base.errors import InputError
from rl4p.runs.tracker import database as databases
from rl4p.runs.tracker.database import complete, lock_of
from rl4p.runs.tracker.mlflow import MLflow
from tests.runs.tracker.conftest import only_run

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


def test_the_lock_of_another_program_stays_as_it_is(tmp_path):
    (tmp_path / "uv.lock").write_text("precious\n")
    MLflow(uri=f"sqlite:///{tmp_path}/uv").connect()
    assert (tmp_path / "uv.lock").read_text() == "precious\n"
    assert lock_of(tmp_path / "uv").read_bytes() == b""
    MLflow(uri=f"sqlite:///{tmp_path}/uv")  # is MLflow's now
