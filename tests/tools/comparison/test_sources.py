"""Tests which runs the arguments name, where the files go, and what is refused in one sentence."""

import datetime as clock
from pathlib import Path

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.comparison import sources
from rl4p.tools.comparison.sources import CompareOptions, Store, read, read_options
from tests.support.compared_runs import write_run


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
