"""Tests what a tracker gets of the record of a run folder."""

import dataclasses

import pytest
import yaml

from rl4p.configuration.signature import signed
from rl4p.runs.tracker.sending import Destination, send
from tests.runs.tracker import conftest as tracker

template, store, record, dead = tracker.template, tracker.store, tracker.record, tracker.dead
impatient = tracker._impatient


@pytest.fixture
def run(record):
    """Returns the record of a run whose tracker was always down."""
    for number in range(3):
        record.log(number, {"reward/mean": number / 10})
    record.log_samples(2, [{"response": "2"}])
    record.write_summary({"status": "finished", "step": 2})
    return record


def set_tracker(record, tracker):
    path = record.folder / "config.yaml"
    config = yaml.safe_load(path.read_text()) | {"tracker": tracker}
    path.write_text(signed("config.yaml", yaml.safe_dump(config)))


def test_a_run_that_was_killed_is_shown_as_stopped(record, store):
    record.log(0, {"a": 0.0})
    sentence = send(record.folder, Destination(uri=store.uri))
    assert sentence.endswith(f" is in MLflow at {store.uri} with its 1 lines of metrics.")
    client, experiment = store.connect()
    (mirrored,) = client.search_runs([experiment])
    assert mirrored.info.status == "KILLED"
    assert mirrored.data.tags["status"] == "stopped"


@pytest.mark.parametrize(("status", "shown"), [("failed", "FAILED"), ("stopped", "KILLED")])
def test_a_run_has_the_status_of_its_summary(record, store, status, shown):
    record.write_summary({"status": status})
    send(record.folder, Destination(uri=store.uri))
    client, experiment = store.connect()
    (mirrored,) = client.search_runs([experiment])
    assert mirrored.info.status == shown


def test_the_experiment_is_that_of_the_run_unless_another_is_named(run, store):
    options = dataclasses.asdict(store) | {"experiment": "mine"}
    set_tracker(run, {"_target_": "rl4p.runs.tracker.mlflow.MLflow", **options})
    send(run.folder, Destination())
    client, experiment = dataclasses.replace(store, experiment="mine").connect()
    assert len(client.search_runs([experiment])) == 1
    assert client.get_experiment_by_name("rl4p") is None


def test_a_run_of_several_trackers_is_sent_to_its_store(run, store):
    mlflow = {"_target_": "rl4p.runs.tracker.mlflow.MLflow", **dataclasses.asdict(store)}
    trackers = {"csv": {"_target_": "rl4p.runs.tracker.csv.CSV"}, "mlflow": mlflow}
    several = {"_target_": "rl4p.runs.tracker.several.Several", "uri": "a", "trackers": trackers}
    set_tracker(run, several)
    assert send(run.folder, Destination()).endswith("with its 3 lines of metrics.")
    client, experiment = store.connect()
    assert len(client.search_runs([experiment])) == 1
