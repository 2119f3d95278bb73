import os
import pickle
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from rl4p.runs.tracker.mirror import PARENT
from rl4p.runs.tracker.mlflow import PARENT_VARIABLE
from rl4p.runs.tracker.sweep import ParentRun, where_to_look

APP = """
import pathlib, sys
import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rl4p.runs.record import Record

@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(config):
    record = Record(pathlib.Path(HydraConfig.get().runtime.output_dir))
    record.describe(OmegaConf.to_container(config, resolve=True), {})
    tracked = instantiate(config.tracker).open(record.folder)
    record.log(0, {"a": float(config.seed)})
    if config.seed == 13:
        tracked.finish("failed")
        raise RuntimeError("unlucky")
    assert tracked.finish("finished")

main()
"""
CONFIG = """
seed: 0
tracker:
  _target_: rl4p.runs.tracker.mlflow.MLflow
  uri: sqlite:///outputs/mlflow.db
  close_timeout_seconds: 60.0
hydra:
  sweep: {dir: outputs/sweeps/2026-11-21/12-30-05}
  callbacks:
    tracker: {_target_: rl4p.runs.tracker.sweep.ParentRun}
"""


def sweep(folder, *arguments):
    (folder / "app.py").write_text(APP)
    (folder / "config.yaml").write_text(CONFIG)
    command = [sys.executable, "app.py", "--config-dir", ".", "-m", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def family(store):
    """Returns the only run without a parent, and its children, which are all other runs."""
    client, experiment = store.connect()
    runs = client.search_runs([experiment])
    (parent,) = [run for run in runs if PARENT not in run.data.tags]
    children = [run for run in runs if run.data.tags.get(PARENT) == parent.info.run_id]
    assert len(children) == len(runs) - 1
    return parent, sorted(children, key=lambda run: run.info.run_name)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_the_runs_of_a_sweep_have_one_parent(launcher, store, tmp_path):
    result = sweep(tmp_path, "seed=7,8", f"hydra/launcher={launcher}")
    assert result.returncode == 0, result.stderr
    parent, children = family(store)
    assert parent.info.status == "FINISHED"
    assert parent.info.run_name == "seed=7,8"
    assert parent.data.tags["sweep"] == "seed=7,8"
    assert parent.data.tags["mlflow.source.name"] == "rl4p.train"
    assert [child.info.run_name for child in children] == ["seed=7", "seed=8"]
    assert [child.data.metrics["a"] for child in children] == [7.0, 8.0]


@pytest.mark.slow
def test_a_sweep_with_a_failed_run_has_failed(store, tmp_path):
    assert sweep(tmp_path, "seed=13,8").returncode == 1
    parent, children = family(store)
    assert parent.info.status == "FAILED"
    assert [child.info.status for child in children] == ["FAILED", "FINISHED"]


def config(tracker):
    hydra = {"sweep": {"dir": "sweeps/1"}, "overrides": {"task": []}}
    return OmegaConf.create({"tracker": tracker, "hydra": hydra})


def test_failed_runs_count_where_the_launcher_hides_them(store, record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = ParentRun()
    callback.on_multirun_start(
        config({"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": store.uri})
    )
    assert PARENT_VARIABLE in os.environ
    assert store.open(record.folder).finish("failed")
    callback.on_multirun_end(config({}))
    assert PARENT_VARIABLE not in os.environ
    assert family(store)[0].info.status == "FAILED"


@pytest.mark.parametrize(
    "tracker",
    [
        {"_target_": "rl4p.runs.tracker.none.NoTracker"},
        {"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": "sqlite:///x.db", "experimemt": "a"},
        {"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": "x.db"},
    ],
)
def test_nothing_is_made_where_no_run_will_be_mirrored(tracker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PARENT_VARIABLE, "left over")
    callback = ParentRun()
    callback.on_multirun_start(config(tracker))
    callback.on_multirun_end(config(tracker))
    assert PARENT_VARIABLE not in os.environ
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_down_costs_the_parent_and_a_sentence(dead, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = ParentRun()
    callback.on_multirun_start(config({"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": dead}))
    callback.on_multirun_end(config({}))
    assert PARENT_VARIABLE not in os.environ
    (warning,) = caplog.records
    assert f"no parent run in MLflow at {dead}: ConnectionRefusedError" in warning.getMessage()


def test_a_sweep_that_continues_has_the_same_parent(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    node = {"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": store.uri}
    parents = []
    for _ in range(2):
        callback = ParentRun()
        callback.on_multirun_start(config(node))
        parents.append(os.environ[PARENT_VARIABLE])
        callback.on_multirun_end(config({}))
    assert parents[0] == parents[1]
    client, experiment = store.connect()
    (parent,) = client.search_runs([experiment])
    assert parent.info.status == "FINISHED"
    said = capsys.readouterr().out
    assert f"mlflow ui --backend-store-uri {store.uri}" in said
    assert f"/#/experiments/{experiment}/runs?" in said
    assert parents[0] in parent.data.tags["mlflow.note.content"]


def test_the_address_of_a_server_is_that_of_its_page():
    assert where_to_look("http://host:5000/", "#/x") == "The runs in MLflow: http://host:5000/#/x"


def test_several_trackers_have_a_parent_if_one_is_mlflow(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = {"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": store.uri}
    several = {"_target_": "rl4p.runs.tracker.several.Several", "trackers": {"mlflow": node}}
    callback = ParentRun()
    callback.on_multirun_start(config(several))
    assert PARENT_VARIABLE in os.environ
    callback.on_multirun_end(config(several))
    assert family(store)[0].info.run_name == "sweeps/1"


def test_launchers_can_pickle_the_callback(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = ParentRun()
    callback.on_multirun_start(
        config({"_target_": "rl4p.runs.tracker.mlflow.MLflow", "uri": store.uri})
    )
    assert isinstance(pickle.loads(pickle.dumps(callback)), ParentRun)
    callback.on_multirun_end(config({}))
