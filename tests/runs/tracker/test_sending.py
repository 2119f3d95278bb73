"""Tests what a tracker gets of the record of a run folder."""

import dataclasses

import pytest

from rl4p.runs.tracker.sending import Destination, send
from tests.support.trackers import MLFLOW, only_run, set_tracker


@pytest.mark.parametrize(
    ("status", "shown"), [(None, "KILLED"), ("failed", "FAILED"), ("stopped", "KILLED")]
)
def test_a_run_has_the_status_of_its_summary(record, store, status, shown):
    """A run that was killed has none, and is shown as stopped."""
    record.log(0, {"a": 0.0})
    if status is not None:
        record.write_summary({"status": status})
    sentence, page = send(record.folder, Destination(uri=store.uri)).splitlines()
    assert sentence.endswith(f" is in MLflow at {store.uri} with its 1 lines of metrics.")
    assert page.startswith("The runs in MLflow (mlflow ui --backend-store-uri sqlite:")
    mirrored = only_run(store)
    assert mirrored.info.status == shown
    assert mirrored.data.tags["status"] == (status or "stopped")


def test_the_experiment_is_that_of_the_run_unless_another_is_named(ended, store):
    own = dataclasses.replace(store, experiment="mine")
    set_tracker(ended, MLFLOW | dataclasses.asdict(own))
    send(ended.folder, Destination())
    assert only_run(own)
    client, _ = own.connect()
    assert client.get_experiment_by_name("rl4p") is None


def test_a_run_of_several_trackers_is_sent_to_its_store(ended, store):
    mlflow = MLFLOW | dataclasses.asdict(store)
    trackers = {"csv": {"_target_": "rl4p.runs.tracker.local.CSV"}, "mlflow": mlflow}
    several = {"_target_": "rl4p.runs.tracker.local.Several", "uri": "a", "trackers": trackers}
    set_tracker(ended, several)
    assert send(ended.folder, Destination()).splitlines()[0].endswith("its 3 lines of metrics.")
    assert only_run(store)
