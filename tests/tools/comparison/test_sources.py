"""Tests that an MLflow store alone gives the same comparison as the folders of its runs."""

import datetime as clock
import shutil
from pathlib import Path

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs.tracker.mirror import IDENTITY, SWEEP, MLflowMirror
from rl4p.tools.comparison import sources
from rl4p.tools.comparison.report import document
from rl4p.tools.comparison.runs import find, read_folders
from rl4p.tools.comparison.samples import side_by_side
from rl4p.tools.comparison.sources import CompareOptions, Store, read, read_experiment, read_options
from rl4p.tools.comparison.statistics import analysed
from tests.support import trackers as tracker
from tests.support.compared_runs import METRIC, write_run

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


def without_names(found):
    return [{k: v for k, v in group.items() if k != "runs"} for group in found["groups"]]


@pytest.mark.slow
def test_the_store_alone_gives_the_same_groups_and_differences(sent, store):
    from_folders = analysed(*read_folders([sent]), sent)
    shutil.rmtree(sent)
    from_store = analysed(*read_experiment("rl4p", store.uri), sent)
    one, other = document(from_folders), document(from_store)
    assert without_names(one) == without_names(other)
    assert one["differences"] == other["differences"]
    assert one["sentences"] == other["sentences"]
    groups = [result.group for result in from_store.results]
    assert side_by_side(groups)
    client, experiment = store.connect()
    runs = {run.info.run_id for run in client.search_runs([experiment])}
    named = [name for group in other["groups"] for name in group["runs"]]
    assert {name.rpartition("(")[2].rstrip(")") for name in named} == runs


def test_without_artifacts_the_parameters_name_the_groups(sent, store):
    shutil.rmtree(sent.parent / "outputs" / "mlartifacts")
    found = analysed(*read_experiment("rl4p", store.uri), sent)
    assert [result.group.label for result in found.results] == ["rloo", "grpo"]
    assert sorted(found.results[0].values) == [0, 1, 2]
    assert found.results[0].costs.tokens == 4 * 200


def test_runs_that_did_not_finish_evaluations_and_parents_are_no_runs(sent, store, tmp_path):
    client, experiment = store.connect()
    client.create_run(experiment, run_name="the parent of a sweep", tags={IDENTITY: "a", SWEEP: ""})
    client.create_run(experiment, run_name="a run of another program")
    send(store, write_run(tmp_path / "bad", status="failed"), "failed")
    send(store, write_run(tmp_path / "killed", status=None), "stopped")
    send(store, write_run(tmp_path / "evaluation", kind="evaluation"))
    runs, left_out = read_experiment("rl4p", store.uri)
    assert len(runs) == 6
    assert sorted(each.reason for each in left_out) == [
        "it failed at step 4",
        "it is an evaluation, and no training run",
        "it was stopped at step 4",
    ]


@pytest.mark.slow
def test_another_metric_is_read_on_request(sent, store):
    assert "update/loss" not in read_experiment("rl4p", store.uri)[0][0].rows[-1]
    rows = [{"step": 0, METRIC: 0.0, "update/loss": 7.0, "eval/a (b), @1/x": 8.0}]
    send(store, write_run(sent / "new", rows=rows))
    for name in ("update/loss", "eval/a (b), @1/x"):  # MLflow has another name for the second
        found, _ = read_experiment("rl4p", store.uri, name)
        assert found[-1].rows == [{k: x for k, x in rows[0].items() if k in ("step", METRIC, name)}]


def test_an_experiment_that_is_not_there_is_an_error_that_lists_the_others(store):
    with pytest.raises(InputError, match=r"experiment=none is not in .* which has .*template"):
        read_experiment("none", store.uri)
    with pytest.raises(InputError, match=r"has no run of rl4p\.train"):
        read_experiment("template", store.uri)


def test_a_database_that_does_not_exist_is_not_created(tmp_path):
    path = tmp_path / "none.db"
    with pytest.raises(InputError, match="does not exist"):
        read_experiment("rl4p", f"sqlite:///{path}")
    assert not path.exists()


def test_a_store_that_is_down_is_one_sentence(dead):
    with pytest.raises(RunError, match="cannot be read: ConnectionRefusedError"):
        read_experiment("rl4p", dead)


def test_a_misspelt_metric_is_refused_with_near_names_of_the_store(sent, store):
    with pytest.raises(InputError, match=r"write metric=reward/mean"):
        read_experiment("rl4p", store.uri, "reward/maen")


def test_each_source_has_its_words():
    assert read_options(["run=a", "metric=m", "out=o"]) == CompareOptions(
        run=("a",), metric="m", out="o"
    )
    assert read_options(["run=[a,b]"]) == CompareOptions(run=("a", "b"))
    options = read_options(["experiment=e", "tracker.uri=sqlite:///a=b.db"])
    assert options.tracker == Store(uri="sqlite:///a=b.db")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Give run=FOLDER, or experiment=NAME tracker.uri=URI"),
        (["metric=m"], "Give run=FOLDER, or experiment=NAME tracker.uri=URI"),
        (["run=a", "experiment=e", "tracker.uri=b"], "Give run=FOLDER, or experiment=NAME"),
        (["run=a", "tracker.uri=b"], "Give run=FOLDER, or experiment=NAME"),
        (["experiment=e"], "Give run=FOLDER, or experiment=NAME"),
        (["run="], "run= is not a list of folders"),
        (["a"], "a is neither KEY=VALUE nor a path that exists"),
    ],
)
def test_other_arguments_are_refused_in_one_sentence(words, sentence, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(InputError) as error:
        read_options(words)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_mlflows_variable_is_the_store_of_an_experiment(monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    options = read_options(["experiment=e"])
    assert options == CompareOptions(experiment="e")
    with pytest.raises(InputError, match=r"none\.db does not exist"):
        read(options)
    with pytest.raises(InputError, match="Give run=FOLDER, or experiment=NAME"):
        read_options([])


def test_the_latest_run_is_compared_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="run=latest: there is no run under"):
        read(CompareOptions(run=("latest",)))


def test_the_files_of_a_sweep_are_in_its_folder(sweep):
    runs, left_out, out = read(CompareOptions(run=(str(sweep),)))
    assert len(runs) == 6
    assert not left_out
    assert out == sweep / "compare"
    assert read(CompareOptions(run=(f"{sweep}/grpo-0", f"{sweep}/rloo-0")))[2] == out
    assert read(CompareOptions(run=(str(sweep),), out="other"))[2] == Path("other/compare")


def test_the_files_of_other_runs_are_in_a_new_folder(tmp_path, sweep, monkeypatch):
    class Noon(clock.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 23, 12, 0, 5)

    monkeypatch.setattr(sources, "datetime", Noon)
    alone = write_run(tmp_path / "alone")
    expected = Path("outputs/comparisons/2026-11-23/12-00-05/compare")
    assert read(CompareOptions(run=(str(sweep), str(alone))))[2] == expected
    assert read(CompareOptions(run=(str(alone),)))[2] == expected
