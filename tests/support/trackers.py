"""Stores and runs for the tests of trackers."""

import shutil
import socket
import time

import pytest
import yaml

from rl4p.configuration.yaml_file import signed
from rl4p.runs.record import Record
from rl4p.runs.tracker import background, mlflow
from rl4p.runs.tracker.mlflow import MLflow

MLFLOW = {"_target_": "rl4p.runs.tracker.mlflow.MLflow"}


def set_tracker(record, tracker):
    path = record.folder / "config.yaml"
    config = yaml.safe_load(path.read_text()) | {"tracker": tracker}
    path.write_text(signed("config.yaml", yaml.safe_dump(config)))


def only_run(tracker):
    """Returns the only run in the experiment of a tracker."""
    client, experiment = tracker.connect()
    (run,) = client.search_runs([experiment])
    return run


def wait_for(condition):
    """Waits until the thread has reached a condition."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the thread did not come so far in a minute")


CONFIG = {
    "seed": 3,
    "steps": 4,
    "group_size": 8,
    "advantage": {"_target_": "rl4p.advantage.grpo.GRPO", "epsilon": 1e-4},
    "optimizer": {"_target_": "rl4p.learner.optimizer.AdamW", "learning_rate": 2e-4},
    "model": {"_target_": "rl4p.model.tiny.Tiny", "path": "policies/tiny"},
    "data": {"_target_": "rl4p.data.files.JSONL", "path": None},
}


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """Returns an empty database, which takes MLflow seconds to create."""
    path = tmp_path_factory.mktemp("template") / "mlflow.db"
    MLflow(uri=f"sqlite:///{path}", experiment="template").connect()
    return path


@pytest.fixture
def store(template, tmp_path):
    """Returns a tracker with its own SQLite store."""
    (tmp_path / "outputs").mkdir()
    path = shutil.copy(template, tmp_path / "outputs/mlflow.db")
    return MLflow(uri=f"sqlite:///{path}", close_timeout_seconds=60.0)


OF_DATA = {"name": "jsonl", "key": "data", "uri": None}
DATA_SETS = [
    OF_DATA | {"digest": "0a1b", "context": "training", "rows": 9},
    OF_DATA | {"digest": "2c3d", "context": "evaluation", "rows": 2, "uri": "test.jsonl"},
]


@pytest.fixture
def record(tmp_path):
    """Returns the record of a run that has just begun."""
    folder = tmp_path / "runs/2026-11-21/12-30-05"
    folder.mkdir(parents=True)
    record = Record(folder)
    environment = {"git_commit": "0a1b2c", "device": "cpu", "packages": {"jax": "0.10"}}
    record.describe(CONFIG, environment | {"data_sets": DATA_SETS})
    return record


@pytest.fixture
def ended(record):
    """Returns the record of a run whose tracker was always down."""
    for number in range(3):
        record.log(number, {"reward/mean": number / 10})
    record.log_samples(2, [{"response": "2"}])
    record.write_summary({"status": "finished", "step": 2})
    return record


@pytest.fixture
def dead():
    """Returns the address of a server that is down."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Shortens the waiting times of the tracker, and unsets MLflow's variables."""
    defaults = background.BackgroundMirror.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "between_seconds", 0.01)
    monkeypatch.setattr(background, "SECONDS_BETWEEN_ATTEMPTS", 0.05)
    for name in (mlflow.PARENT_VARIABLE, mlflow.URI, mlflow.NAME, mlflow.ID):
        monkeypatch.delenv(name, raising=False)
