import os
import pickle
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from rl4p.runs import signals
from rl4p.runs.tracker import sweep as sweeps
from rl4p.runs.tracker.mirror import NOTE, PARENT
from rl4p.runs.tracker.mlflow import PARENT_VARIABLE, MLflow
from rl4p.runs.tracker.sweep import ParentRun, attach_comparison
from tests.support.trackers import MLFLOW, only_run

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


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Returns a function that begins a sweep with a tracker, and returns what ends it."""
    monkeypatch.chdir(tmp_path)
    hydra = {"sweep": {"dir": "sweeps/1"}, "overrides": {"task": []}}

    def start(tracker):
        callback, config = ParentRun(), OmegaConf.create({"tracker": tracker, "hydra": hydra})
        callback.on_multirun_start(config)

        def end():
            callback.on_multirun_end(config)
            assert PARENT_VARIABLE not in os.environ

        end.callback = callback
        return end

    return start


@pytest.mark.parametrize(("status", "shown"), [("failed", "FAILED"), ("stopped", "KILLED")])
def test_failed_and_stopped_runs_count_where_the_launcher_hides_them(
    store, record, begin, status, shown
):
    """Launchers can pickle the callback."""
    end = begin(MLFLOW | {"uri": store.uri})
    assert PARENT_VARIABLE in os.environ
    assert isinstance(pickle.loads(pickle.dumps(end.callback)), ParentRun)
    assert store.open(record.folder).finish(status)
    end()
    assert family(store)[0].info.status == shown


@pytest.mark.parametrize(("failed", "shown"), [(False, "KILLED"), (True, "FAILED")])
def test_a_sweep_that_is_interrupted_between_its_jobs_is_killed(
    store, record, begin, tmp_path, monkeypatch, failed, shown
):
    """A job that failed before it had a run in MLflow has a file."""
    calls = []
    monkeypatch.setattr(sweeps.atexit, "register", lambda *call: calls.append(call))
    begin(MLFLOW | {"uri": store.uri})
    assert store.open(record.folder).finish("finished")
    if failed:
        (tmp_path / "sweeps/1/3").mkdir(parents=True)
        (tmp_path / "sweeps/1/3/failure.json").touch()
    ((call, *arguments),) = calls
    call(*arguments)
    assert family(store)[0].info.status == shown
    assert signals.AT_FORCED_END == []


def test_a_sweep_that_is_ended_by_force_is_killed(store, begin):
    begin(MLFLOW | {"uri": store.uri})
    signals.say_farewell()
    assert only_run(store).info.status == "KILLED"


@pytest.mark.parametrize(
    "tracker",
    [
        {"_target_": "rl4p.runs.tracker.local.NoTracker"},
        MLFLOW | {"uri": "sqlite:///x.db", "experimemt": "a"},
        MLFLOW | {"uri": "x.db"},
    ],
)
def test_nothing_is_made_where_no_run_will_be_mirrored(tracker, begin, tmp_path, monkeypatch):
    monkeypatch.setenv(PARENT_VARIABLE, "left over")
    end = begin(tracker)
    assert PARENT_VARIABLE not in os.environ
    end()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_down_costs_the_parent_and_a_sentence(dead, caplog, begin):
    begin(MLFLOW | {"uri": dead})()
    (warning,) = caplog.records
    assert f"no parent run in MLflow at {dead}: ConnectionRefusedError" in warning.getMessage()


def test_a_sweep_that_continues_has_the_same_parent(store, begin, capsys):
    """Also if MLflow is one of several trackers."""
    node, parents = MLFLOW | {"uri": store.uri}, []
    several = {"_target_": "rl4p.runs.tracker.local.Several", "trackers": {"mlflow": node}}
    for tracker in (node, several):
        end = begin(tracker)
        parents.append(os.environ[PARENT_VARIABLE])
        end()
    assert parents[0] == parents[1]
    parent = only_run(store)
    assert (parent.info.status, parent.info.run_name) == ("FINISHED", "sweeps/1")
    said = capsys.readouterr().out
    assert f"mlflow ui --backend-store-uri {store.uri}" in said
    assert f"/#/experiments/{parent.info.experiment_id}/runs?" in said
    assert parents[0] in parent.data.tags["mlflow.note.content"]


@pytest.fixture
def comparison(tmp_path):
    """Returns the folder of the comparison of the sweep of `begin`."""
    folder = tmp_path / "sweeps" / "1" / "compare"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("page")
    return folder


def test_the_parent_gets_the_comparison_and_the_means_of_the_groups(store, begin, comparison):
    begin(MLFLOW | {"uri": store.uri})()
    attach_comparison(comparison.parent, comparison, "| group | IQM |", {"a=1 b=x/y": 0.5})
    parent = only_run(store)
    assert parent.data.metrics == {"IQM/a: 1 b: x/y": 0.5}
    assert "| group | IQM |" in parent.data.tags[NOTE]
    assert "Charts of the runs" in parent.data.tags[NOTE]
    client, _ = store.connect()
    assert [file.path for file in client.list_artifacts(parent.info.run_id, "compare")] == [
        "compare/index.html"
    ]


def test_a_comparison_stays_in_its_folder_without_a_parent_or_a_store(
    dead, comparison, caplog, monkeypatch
):
    attach_comparison(comparison.parent, comparison, "", {})  # nobody opened a parent
    assert not caplog.records
    lost = {comparison.parent: (MLflow(uri=dead), "0a1b")}
    monkeypatch.setattr(sweeps, "_opened", lost)
    attach_comparison(comparison.parent, comparison, "", {})
    (warning,) = caplog.records
    assert "lacks the comparison: ConnectionRefusedError" in warning.getMessage()
