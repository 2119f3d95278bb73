"""Tests the views of MLflow's page: columns, order, charts, and the links that open them."""

import json

import pytest

from rl4p.runs.tracker.mirror import mlflow_key
from rl4p.runs.tracker.sweep import links
from rl4p.runs.tracker.view import ALL_RUNS, FIRST, VIEW, page, view, where_to_look
from tests.support.trackers import only_run

PASS = "eval/sums/pass_at_1"


def test_what_differs_is_first_and_the_scores_follow():
    keys = ["advantage", mlflow_key("model@teacher")]
    state = view(keys, {PASS}, parent="0a1b")
    columns = [f"params.`{key}`" for key in keys]
    columns += [f"metrics.`{PASS}`", "metrics.`reward/mean`"]
    assert state["selectedColumns"] == columns
    assert state["columnOrder"] == ["attributes.`Run Name`", "runDateAndNestInfo", *columns]
    assert state["searchFilter"] == "tags.mlflow.parentRunId = '0a1b'"
    assert (state["orderByKey"], state["orderByAsc"]) == (f"metrics.`{PASS}`", False)


def test_without_an_evaluation_the_reward_orders_the_runs():
    assert view(["seed"], (), parent="0a1b")["orderByKey"] == "metrics.`reward/mean`"


def test_charts_begin_with_what_matters():
    metrics = {"advantage/max", PASS, "eval/sums/avg_at_4", "reward/mean", "update/entropy"}
    state = view(["seed"], metrics)
    assert [chart["metricKey"] for chart in state["compareRunCharts"]] == [
        PASS, "eval/sums/avg_at_4", "reward/mean", "update/entropy"
    ]  # fmt: skip
    first = state["compareRunSections"][0]
    assert first["name"] == FIRST
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {first["uuid"]}
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == 4
    assert (state["searchFilter"], state["orderByKey"]) == ("", "attributes.start_time")


def test_the_link_opens_the_part_for_training():
    assert page("1", "0a1b") == (
        "#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=0a1b"
        "&compareRunsMode=TABLE"
    )
    assert page("1", "0a1b") in links("1", "0a1b")
    assert page("1", "0a1b", charts=True) in links("1", "0a1b")
    assert where_to_look("http://host:5000/", "#/x") == "The runs in MLflow: http://host:5000/#/x"


@pytest.mark.parametrize("parent", [None, "0a1b"])
def test_a_run_ends_with_the_link_to_its_view_and_a_job_of_a_sweep_does_not(
    parent, store, record, monkeypatch, capsys
):
    if parent:
        monkeypatch.setenv("RL4P_PARENT_RUN_ID", parent)
    tracked = store.open(record.folder)
    row = {PASS: 0.5, "eval/sums/prompts": 256.0}
    record.log(0, row)
    tracked.log(0, row)
    assert tracked.finish("finished")
    run, (client, experiment) = only_run(store), store.connect()
    said = capsys.readouterr().out
    views = [tag for tag in client.get_experiment(experiment).tags if tag.startswith(VIEW)]
    if parent:
        assert (said, views) == ("", [])
        return
    assert page(experiment, ALL_RUNS, charts=True) in said
    assert f"mlflow ui --backend-store-uri {store.uri}" in said
    state = json.loads(client.get_experiment(experiment).tags[VIEW + ALL_RUNS])
    assert f"metrics.`{PASS}`" in state["selectedColumns"]
    assert "eval/sums/prompts" not in run.data.metrics  # never changes: no column, no chart
    assert run.data.tags["eval/sums/prompts"] == "256"
