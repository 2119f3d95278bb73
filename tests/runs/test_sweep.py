"""Tests a sweep: a parent run in MLflow, a child per job, and a database made beforehand."""

from pathlib import Path

import mlflow
import pytest


@pytest.mark.slow
def test_a_sweep_is_one_parent_and_a_child_a_job(train, tmp_path: Path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    process = train(
        "-m", "advantage=grpo,rloo", "seed=0,1", "steps=1", "tracker=mlflow", f"tracker.uri={uri}",
        f"hydra.sweep.dir={tmp_path / 'sweep'}", cwd=tmp_path,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("rl4p")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 1
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parents[0].info.run_id}
    assert {(run.data.params["advantage"], run.data.params["seed"]) for run in children} == {
        ("grpo", "0"), ("grpo", "1"), ("rloo", "0"), ("rloo", "1"),
    }  # fmt: skip
    assert {run.info.status for run in children} == {"FINISHED"}
    assert all("update/loss" in run.data.metrics for run in children)
