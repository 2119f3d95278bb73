"""Tests uploads with a real checkpoint, a real export and a SQLite store."""

import dataclasses
from pathlib import Path

import mlflow
import numpy as np
import pytest
from omegaconf import OmegaConf

from rl4p.configuration import compose
from rl4p.export import main
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.record import Record
from rl4p.runs.tracker.registration import STEP, checkpoints, export, steps_of

SMALL = (
    "model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "data.train_size=20",
    "data.held_out_size=4", "prompts_per_step=4", "group_size=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns the folder of a run with a checkpoint of step 7."""
    folder = tmp_path_factory.mktemp("run")
    config = compose(SMALL)
    (folder / ".hydra").mkdir()
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    record = Record(folder)
    record.describe(OmegaConf.to_container(config, resolve=True), {})
    record.log(7, {"reward/mean": 0.5})
    summary = {"params_sha256": "0a1b", "evaluation": {"last": {"eval/sums/pass_at_1": 0.75}}}
    record.write_summary({"status": "finished"} | summary)
    experiment = build(config)
    state = experiment.state
    state = type(state)(**(vars(state) | {"step": np.int32(7)}))
    with Orbax().open(folder, experiment.loop.stateful) as saved:
        saved.save(state)
    return folder


def test_a_run_without_a_checkpoint_has_none(tmp_path):
    assert steps_of(tmp_path / "checkpoints") == []
    assert checkpoints(tmp_path) is None


def test_steps_are_in_the_order_of_numbers(tmp_path):
    for name in ("9", "10", "11.orbax-checkpoint-tmp"):
        (tmp_path / name).mkdir()
    assert steps_of(tmp_path) == [9, 10]


@pytest.mark.slow
def test_a_run_that_finishes_is_a_version_of_the_model(made, store, tmp_path, monkeypatch):
    tracker = dataclasses.replace(store, register="adder")
    assert tracker.open(made).finish("stopped")
    client, experiment = store.connect()
    assert not client.search_model_versions("name = 'adder'")
    assert tracker.open(made).finish("finished")
    assert tracker.open(made).finish("finished")  # again: no second version
    (version,) = client.search_model_versions("name = 'adder'")
    (run,) = client.search_runs([experiment])
    assert (version.version, version.run_id) == ("1", run.info.run_id) or version.version == 1
    assert (version.tags[STEP], version.tags["params_sha256"]) == ("7", "0a1b")
    assert version.description == f"{made} after step 7; eval/sums/pass_at_1 = 0.75"
    assert run.data.tags["registered"] == "adder"
    assert not list(made.glob("tmp*"))  # the export was temporary

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    place = mlflow.artifacts.download_artifacts("models:/adder/1", dst_path=str(tmp_path / "out"))
    assert main([f"run={made}", f"out={tmp_path / 'exported'}"]) == 0
    exported = {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()}
    assert {path.name: path.read_bytes() for path in Path(place).iterdir()} == exported


@pytest.mark.slow
def test_a_checkpoint_is_uploaded_once_on_request(made, store):
    tracker = dataclasses.replace(store, upload_checkpoints=True)
    for _ in range(2):
        assert tracker.open(made).finish("stopped")
    client, experiment = store.connect()
    (run,) = client.search_runs([experiment])
    names = {file.path for file in client.list_artifacts(run.info.run_id, "checkpoints/7")}
    assert names == {f"checkpoints/7/{path.name}" for path in (made / "checkpoints/7").iterdir()}


@pytest.mark.slow
def test_a_policy_that_cannot_be_exported_is_reported(store, record, caplog):
    (record.folder / "checkpoints/7").mkdir(parents=True)
    tracked = dataclasses.replace(store, register="adder").open(record.folder)
    assert not tracked.finish("finished")
    (warning,) = caplog.records
    assert "could not be exported: run=" in warning.getMessage()
    assert "is not the folder of a run" in warning.getMessage()


def test_a_run_without_a_checkpoint_registers_nothing_and_says_so(store, record, caplog):
    tracked = dataclasses.replace(store, register="adder").open(record.folder)
    assert not tracked.finish("finished")
    assert "has no checkpoint, so tracker.register=adder" in caplog.records[0].getMessage()


def test_the_trust_of_the_run_is_passed_on(made, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(
        "rl4p.runs.tracker.registration.subprocess.run",
        lambda command, **options: commands.append(command) or type("Done", (), {"returncode": 0}),
    )
    export(made, tmp_path / "out", "7", ("mine", "ours"))
    assert commands[0][-2:] == ["step=7", "trusted_targets=[mine,ours]"]
