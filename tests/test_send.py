"""Tests that a finished run is sent once, and that every problem is one sentence."""

import dataclasses

import pytest

from rl4p.runs.tracker.view import ALL_RUNS, page, where_to_look
from rl4p.send import main
from tests.support import trackers as tracker
from tests.support.trackers import MLFLOW, only_run, set_tracker

template, store, record, dead = tracker.template, tracker.store, tracker.record, tracker.dead
impatient, run = tracker._impatient, tracker.ended


@pytest.mark.slow
def test_a_run_is_sent_once_however_often_one_asks(run, store, capsys):
    set_tracker(run, MLFLOW | dataclasses.asdict(store))
    assert main([str(run.folder)]) == main([str(run.folder)]) == 0
    client, mirrored = store.connect()[0], only_run(store)
    assert mirrored.info.status == "FINISHED"
    history = client.get_metric_history(mirrored.info.run_id, "reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.0), (1, 0.1), (2, 0.2)]
    files = {file.path for file in client.list_artifacts(mirrored.info.run_id)}
    assert files == {
        "config.yaml",
        "environment.json",
        "samples.jsonl",
        "samples.json",
        "summary.json",
    }
    sentence = f"{run.folder} is in MLflow at {store.uri} with its 3 lines of metrics.\n"
    charts = where_to_look(store.uri, page(mirrored.info.experiment_id, ALL_RUNS, charts=True))
    assert capsys.readouterr().out == 2 * f"{sentence}{charts}\n"


def test_a_run_that_was_killed_can_be_sent_and_then_go_on(record, store):
    record.log(0, {"a": 0.0})
    with record.metrics_file.open("a") as file:
        file.write('{"a": 1.')
    assert main([str(record.folder), f"tracker.uri={store.uri}"]) == 0
    record.truncate_after(0)
    tracked = store.open(record.folder)
    record.log(1, {"a": 1.0})
    assert tracked.finish("finished")
    client, mirrored = store.connect()[0], only_run(store)
    history = client.get_metric_history(mirrored.info.run_id, "a")
    assert [metric.step for metric in history] == [0, 1]


def test_uri_and_experiment_can_be_others_than_the_runs(run, store, dead):
    set_tracker(run, MLFLOW | {"uri": dead})
    assert main([str(run.folder), f"tracker.uri={store.uri}", "tracker.experiment=other"]) == 0
    client, experiment = dataclasses.replace(store, experiment="other").connect()
    assert len(client.search_runs([experiment])) == 1


def test_a_folder_that_no_run_made(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    expected = f"{tmp_path} is not the folder of a run: it has no config.yaml.\n"
    assert capsys.readouterr().err == expected


def test_a_run_without_a_store(run, capsys):
    set_tracker(run, {"_target_": "rl4p.runs.tracker.local.NoTracker"})
    assert main([str(run.folder)]) == 2
    assert "was run without MLflow: add tracker.uri=URI" in capsys.readouterr().err


def test_a_record_with_a_line_that_no_run_wrote(run, store, capsys):
    with run.metrics_file.open("a") as file:
        file.write("nonsense\n")
    assert main([str(run.folder), f"tracker.uri={store.uri}"]) == 2
    assert "metrics.jsonl, line 4 is not a JSON object" in capsys.readouterr().err


def test_a_store_that_is_down(run, dead, capsys):
    assert main([str(run.folder), f"tracker.uri={dead}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"MLflow at {dead} did not save {run.folder}: ConnectionRefusedError")
    assert error.count("\n") == 1


def test_all_folders_are_sent_until_one_cannot_be(run, store, tmp_path, capsys):
    assert main([str(run.folder), str(tmp_path), str(run.folder), f"tracker.uri={store.uri}"]) == 2
    printed = capsys.readouterr()
    assert printed.out.count("is in MLflow") == 1
    assert printed.err.startswith(f"{tmp_path} is not the folder of a run")


def test_a_run_is_sent_to_another_tracker(run, capsys):
    assert main([str(run.folder), "tracker=csv"]) == 0
    assert capsys.readouterr().out.endswith("is in tracker=csv with its 3 lines of metrics.\n")
    assert len((run.folder / "metrics.csv").read_text().splitlines()) == 4


def test_an_option_that_the_tracker_lacks(run, capsys):
    assert main([str(run.folder), "tracker=csv", "tracker.uri=x"]) == 2
    assert "tracker=csv cannot be opened: " in capsys.readouterr().err
