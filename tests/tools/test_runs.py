"""Tests that finished runs are read, and that every other one is named with its reason.

An MLflow store alone gives the same runs as their folders.
"""

import json
import math
import shutil

import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs.tracker.mirror import IDENTITY, SWEEP, MLflowMirror
from rl4p.tools.comparison.measures import RECORDED
from rl4p.tools.comparison.page import common_prompts
from rl4p.tools.comparison.report import document
from rl4p.tools.comparison.statistics import analysed
from rl4p.tools.runs import Questions, find, read, read_experiment, read_folders
from tests.support import trackers as tracker
from tests.support.compared_runs import METRIC, write_evaluation, write_run, write_sweep

template, store, dead = tracker.template, tracker.store, tracker.dead
impatient = tracker._impatient


def send(store, folder, status="finished"):
    MLflowMirror(*store.connect(), folder).close(status)


@pytest.fixture
def sent(sweep, store):
    """Returns the sweep, whose runs are in the store too."""
    for folder in find(sweep):
        send(store, folder)
    return sweep


@pytest.fixture
def sweep(tmp_path):
    return write_sweep(tmp_path / "sweep")


def without_names(found):
    return [{k: v for k, v in group.items() if k != "runs"} for group in found["groups"]]


def names(folders):
    return [folder.name for folder in folders]


def test_a_run_is_read_with_its_seed_metrics_samples_and_options(tmp_path):
    rloo = {"advantage": "rloo"}
    folder = tmp_path / "run"
    write_run(folder, seed=3, last=0.8, overrides=["advantage=rloo"], choices=rloo, devices=2)
    run = read(folder)
    assert run.name == str(folder)
    assert run.seed == 3
    assert run.rows[-1][METRIC] == 0.8
    assert run.samples[0].prompt == "2+3="
    assert run.choices == {"advantage": "rloo"}
    assert list(run.overrides) == ["advantage=rloo", "seed=3"]
    assert run.devices == 2


def test_runs_are_found_at_any_depth_in_the_order_of_their_numbers(tmp_path):
    for place in ("a/10", "a/9", "b/2026-11-23/12-00-00"):
        write_run(tmp_path / place)
    assert names(find(tmp_path)) == ["9", "10", "12-00-00"]
    assert names(find(tmp_path / "a" / "9")) == ["9"]
    assert names(find(tmp_path / "*")) == ["9", "10", "12-00-00"]


def test_a_folder_in_a_run_is_no_run(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "checkpoints" / "4").mkdir(parents=True)
    (folder / "checkpoints" / "4" / "config.yaml").write_text("{}")
    assert find(tmp_path) == [folder]
    runs, _ = read_folders([folder, tmp_path, tmp_path / "r*"])  # given three times, it counts once
    assert [run.name for run in runs] == [str(folder)]


@pytest.mark.parametrize(("name", "words"), [("none", "does not exist"), ("", "has no run")])
def test_a_folder_without_runs_is_an_error(tmp_path, name, words):
    with pytest.raises(InputError, match=words):
        find(tmp_path / name)


def broken(folder, name, content):
    write_run(folder)
    (folder / name).write_text(content)


FAULTS = {
    "failed": (lambda f: write_run(f, status="failed"), "it failed at step 4"),
    "stopped": (lambda f: write_run(f, status="stopped"), "it was stopped at step 4"),
    "running": (lambda f: write_run(f, status=None), "is still running or was killed, at step 4"),
    "evaluation": (lambda f: write_run(f, kind="evaluation"), "it is an evaluation, and no train"),
    "half": (
        lambda f: (write_run(f, kind="evaluation"), (f / "evaluation.json").unlink()),
        "it is an evaluation that has not ended",
    ),
    "empty": (lambda f: write_run(f, rows=[]), "it has no metrics"),
    "early": (lambda f: (f / ".hydra").mkdir(parents=True), "it ended before its first step"),
    "config": (lambda f: broken(f, "config.yaml", "{: :"), "its files cannot be read"),
    "list": (lambda f: broken(f, "config.yaml", "[1]"), "config.yaml is not a mapping"),
    "seed": (lambda f: broken(f, "config.yaml", "seed: many"), "its files cannot be read"),
    "environment": (lambda f: broken(f, "environment.json", "[]"), "cannot be read"),
    "metrics": (lambda f: broken(f, "metrics.jsonl", "1\n"), "line 1 is not a JSON object"),
    "values": (lambda f: broken(f, "metrics.jsonl", '{"step": 0, "a": null}\n'), "cannot be read"),
    "summary": (lambda f: broken(f, "summary.json", "{"), "its files cannot be read"),
    "bytes": (lambda f: (write_run(f), (f / "config.yaml").write_bytes(b"\xff")), "cannot be read"),
}


@pytest.mark.parametrize(("write", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_run_that_cannot_be_compared_is_named_and_stops_nothing(tmp_path, write, reason):
    good = write_run(tmp_path / "good")
    write(tmp_path / "bad")
    runs, left_out = read_folders([tmp_path])
    assert [run.name for run in runs] == [str(good)]
    (bad,) = left_out
    assert bad.name == str(tmp_path / "bad")
    assert reason in bad.reason


def test_the_last_evaluation_of_a_run_has_its_questions(tmp_path):
    folder = write_run(tmp_path / "run", last=0.5)
    assert read(folder).questions == {}  # an older run
    row = {"task": "arithmetic", "questions": "digest", "avg_at_2": [0.5, 1]}
    rows = [{"step": s, "pass_at_1": [s == 4, 0]} | row for s in (0, 4)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
    assert read(folder).questions == {
        METRIC: Questions(digest="digest", scores=(1.0, 0.0)),
        "eval/arithmetic/avg_at_2": Questions(digest="digest", scores=(0.5, 1.0)),
    }


def test_an_evaluation_has_the_score_of_each_question(tmp_path):
    folder = write_evaluation(tmp_path / "a", [1, 0, None], samples=[[1, 1], [1, 0], [0, None]])
    run = read(folder)
    assert run.evaluation
    greedy, sampled = run.questions[METRIC], run.questions["eval/arithmetic/avg_at_2"]
    assert greedy.scores == (1.0, 0.0, 0.0)  # what cannot be graded is not right
    assert sampled.scores == (1.0, 0.5, 0.0)
    assert greedy.digest == sampled.digest
    same, other = (
        read(write_evaluation(tmp_path / name, [0, 0, 0], answers=answers)).questions[METRIC]
        for name, answers in (("b", None), ("c", ["0", "1", "9"]))
    )
    assert same.digest == greedy.digest != other.digest


def test_an_evaluation_has_the_options_of_the_run_that_it_evaluates(tmp_path):
    run = write_run(
        tmp_path / "run",
        seed=3,
        overrides=["advantage=rloo"],
        choices={"advantage": "rloo", "model": "tiny"},
        config={"advantage": {"_target_": "a.b"}, "model": {"path": "old"}},
    )
    found = read(write_evaluation(tmp_path / "out" / "a", [1, 0], run=run, step=7))
    assert found.config["advantage"] == {"_target_": "a.b"}
    assert found.config["model"] == {"path": "m"}  # its own
    assert found.config["evaluated"] == {"step": 7, "average": False}
    assert found.choices == {"advantage": "rloo"}
    assert list(found.overrides) == ["advantage=rloo", "seed=3"]
    gone = read(write_evaluation(tmp_path / "out" / "b", [1, 0], run=tmp_path / "gone", step=7))
    assert gone.config["evaluated"]["run"] == str(tmp_path / "gone")


def test_evaluations_are_compared_without_a_training_run_only(tmp_path):
    folders = [write_evaluation(tmp_path / name, [1, 0]) for name in "ab"]
    runs, left_out = read_folders([tmp_path])
    assert [run.name for run in runs] == list(map(str, folders))
    assert not left_out
    train = write_run(tmp_path / "train")
    runs, left_out = read_folders([tmp_path])
    assert [run.name for run in runs] == [str(train)]
    assert {run.name for run in left_out} == set(map(str, folders))
    assert {run.reason for run in left_out} == {"it is an evaluation, and no training run"}


@pytest.mark.parametrize("status", ["failed", None])
def test_the_reason_of_a_failure_is_the_last_line_of_its_log(tmp_path, status):
    folder = tmp_path / "bad"
    if status:
        write_run(folder, status=status)
    else:
        (folder / ".hydra").mkdir(parents=True)
    (folder / "train.log").write_text("The job ended\nrl4p.base.errors.RunError: out of memory\n\n")
    _, (bad,) = read_folders([tmp_path])
    assert bad.reason.endswith(" (rl4p.base.errors.RunError: out of memory)")


@pytest.mark.slow
def test_the_store_alone_gives_the_same_groups_and_differences(sent, store):
    from_folders = analysed(*read_folders([sent]), sent)
    shutil.rmtree(sent)
    from_store = analysed(*read_experiment("rl4p", store.uri, RECORDED), sent)
    one, other = document(from_folders), document(from_store)
    assert without_names(one) == without_names(other)
    assert one["differences"] == other["differences"]
    assert one["sentences"] == other["sentences"]
    groups = [result.group for result in from_store.results]
    assert common_prompts(groups)[1]
    client, experiment = store.connect()
    runs = {run.info.run_id for run in client.search_runs([experiment])}
    named = [name for group in other["groups"] for name in group["runs"]]
    assert {name.rpartition("(")[2].rstrip(")") for name in named} == runs


@pytest.mark.slow
def test_without_artifacts_the_parameters_name_the_groups(sent, store):
    shutil.rmtree(sent.parent / "outputs" / "mlartifacts")
    found = analysed(*read_experiment("rl4p", store.uri, RECORDED), sent)
    assert [result.group.label for result in found.results] == ["rloo", "grpo"]
    assert sorted(found.results[0].values) == [0, 1, 2]
    assert found.results[0].costs.tokens == 4 * 200


@pytest.mark.slow
def test_runs_that_did_not_finish_evaluations_and_parents_are_no_runs(sent, store, tmp_path):
    client, experiment = store.connect()
    client.create_run(experiment, run_name="the parent of a sweep", tags={IDENTITY: "a", SWEEP: ""})
    client.create_run(experiment, run_name="a run of another program")
    send(store, write_run(tmp_path / "bad", status="failed"), "failed")
    send(store, write_run(tmp_path / "killed", status=None), "stopped")
    send(store, write_run(tmp_path / "evaluation", kind="evaluation"))
    runs, left_out = read_experiment("rl4p", store.uri, RECORDED)
    assert len(runs) == 6
    assert sorted(each.reason for each in left_out) == [
        "it failed at step 4",
        "it is an evaluation, and no training run",
        "it was stopped at step 4",
    ]


@pytest.mark.parametrize("name", [METRIC, "update/grad_norm"])
def test_values_that_are_not_finite_come_back_from_the_store(store, tmp_path, name):
    values = [0.5, math.inf, -math.inf, math.nan, 1.7e308, -1e308, 5e-324, -0.0, math.inf]
    rows = [{"step": step, METRIC: 0.5, name: value} for step, value in enumerate(values)]
    run = write_run(tmp_path / "run", rows=[{k: as_written(x) for k, x in r.items()} for r in rows])
    send(store, run)
    ((stored,), _) = read_experiment("rl4p", store.uri, RECORDED, name)
    np.testing.assert_array_equal([row[name] for row in stored.rows], values)
    np.testing.assert_array_equal([row[name] for row in read(run).rows], values)


def as_written(value):
    """Returns a number as metrics.jsonl has it."""
    return value if math.isfinite(value) else repr(float(value))


@pytest.mark.slow
def test_a_run_that_ends_at_infinity_is_left_out_of_both_comparisons(store, tmp_path):
    for seed, last in enumerate([0.3, 0.4, math.inf]):
        rows = [{"step": step, METRIC: as_written(x)} for step, x in enumerate([0.1, last])]
        send(store, write_run(tmp_path / "runs" / f"{seed}", seed=seed, rows=rows))
    found = read_folders([tmp_path / "runs"]), read_experiment("rl4p", store.uri, RECORDED)
    folders, stored = (document(analysed(*each, tmp_path / "runs")) for each in found)
    assert without_names(folders) == without_names(stored)
    for each in folders, stored:
        (left_out,) = each["left_out"]
        assert left_out["reason"] == f"its last {METRIC} is inf"


@pytest.mark.slow
def test_another_metric_is_read_on_request(sent, store):
    assert "update/loss" not in read_experiment("rl4p", store.uri, RECORDED)[0][0].rows[-1]
    rows = [{"step": 0, METRIC: 0.0, "update/loss": 7.0, "eval/a (b), @1/x": 8.0}]
    send(store, write_run(sent / "new", rows=rows))
    for name in ("update/loss", "eval/a (b), @1/x"):  # MLflow has another name for the second
        found, _ = read_experiment("rl4p", store.uri, RECORDED, name)
        assert found[-1].rows == [{k: x for k, x in rows[0].items() if k in ("step", METRIC, name)}]


def test_an_experiment_that_is_not_there_is_an_error_that_lists_the_others(store):
    with pytest.raises(InputError, match=r"experiment=none is not in .* which has .*template"):
        read_experiment("none", store.uri, RECORDED)
    with pytest.raises(InputError, match=r"has no run of rl4p\.train"):
        read_experiment("template", store.uri, RECORDED)


def test_a_database_that_does_not_exist_is_not_created(tmp_path):
    path = tmp_path / "none.db"
    with pytest.raises(InputError, match="does not exist"):
        read_experiment("rl4p", f"sqlite:///{path}", RECORDED)
    assert not path.exists()


def test_a_store_that_is_down_is_one_sentence(dead):
    with pytest.raises(RunError, match="cannot be read: ConnectionRefusedError"):
        read_experiment("rl4p", dead, RECORDED)


@pytest.mark.slow
def test_a_misspelt_metric_is_refused_with_near_names_of_the_store(sent, store):
    with pytest.raises(InputError, match=r"write metric=reward/mean"):
        read_experiment("rl4p", store.uri, RECORDED, "reward/maen")
