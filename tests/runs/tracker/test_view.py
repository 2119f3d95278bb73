import json
from types import SimpleNamespace

import pytest

from rl4p.runs.tracker.view import VIEW, links, page, share_view, view


def test_what_differs_is_first_and_the_scores_follow():
    found = view("0a1b", ["advantage", "model@teacher"], ["eval/sums/pass_at_1"])
    columns = ["params.`advantage`", "params.`model_teacher`"]
    columns += ["metrics.`eval/sums/pass_at_1`", "metrics.`reward/mean`"]
    assert found["selectedColumns"] == columns
    assert found["columnOrder"] == ["attributes.`Run Name`", "runDateAndNestInfo", *columns]
    assert found["searchFilter"] == "tags.mlflow.parentRunId = '0a1b'"
    assert (found["orderByKey"], found["orderByAsc"]) == ("metrics.`eval/sums/pass_at_1`", False)


def test_without_an_evaluation_the_reward_orders_the_runs():
    assert view("0a1b", ["seed"], [])["orderByKey"] == "metrics.`reward/mean`"


@pytest.mark.slow
def test_the_view_is_a_tag_whose_name_the_links_hold(store):
    client, experiment = store.connect()
    child = SimpleNamespace(data=SimpleNamespace(metrics={"eval/b/pass_at_1": 1.0, "time/step": 1}))
    share_view(client, experiment, "0a1b", ["seed"], [child])
    saved = json.loads(client.get_experiment(experiment).tags[f"{VIEW}0a1b"])
    assert saved == view("0a1b", ["seed"], ["eval/b/pass_at_1"])
    assert page(experiment, "0a1b") in links(experiment, "0a1b")


def test_the_link_opens_the_view_for_training():
    assert page("1", "0a1b") == (
        "#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=0a1b"
        "&compareRunsMode=TABLE"
    )
