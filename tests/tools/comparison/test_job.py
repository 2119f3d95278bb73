"""Tests the words of the command, and the files that it writes."""

import datetime as clock
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.command import commands
from rl4p.tools.comparison import job
from rl4p.tools.comparison.job import (
    COMPARE,
    CompareOptions,
    Store,
    best_values,
    compare,
    read,
)
from rl4p.tools.runs import read_folders
from tests.support.compared_runs import METRIC, write_run


def document(folder):
    compare(*read_folders([folder]), folder / "compare")
    return json.loads((folder / "compare" / "compare.json").read_text())


@pytest.mark.slow
def test_the_document_has_groups_and_differences(sweep):
    bad = write_run(sweep / "bad", status="failed")
    found = document(sweep)
    rloo, grpo = found["groups"]
    assert rloo["name"] == "advantage=rloo"
    assert rloo["overrides"] == ["advantage=rloo"]
    assert rloo["runs"] == [str(sweep / f"rloo-{seed}") for seed in range(3)]
    assert rloo["metric"] == METRIC
    assert rloo["values"] == {"0": 0.90, "1": 0.91, "2": 0.92}
    assert rloo["mean"] == rloo["iqm"] == pytest.approx(0.91)
    low, high = rloo["interval"]
    assert 0.85 < low < 0.91 < high < 0.97
    assert grpo["tokens"] == 4 * 200
    assert grpo["seconds"] == 4 * 3
    (difference,) = found["differences"]
    assert (difference["better"], difference["worse"]) == ("advantage=rloo", "advantage=grpo")
    assert difference["probability_of_improvement"] == 1
    assert difference["supported"] is True
    assert difference["pairs"] == 3
    assert found["left_out"] == [{"name": str(bad), "reason": "it failed at step 4"}]
    assert found["sentences"]
    write_run(sweep / "new", seed=3, overrides=["advantage=grpo"], choices={"advantage": "grpo"})
    assert sum(len(group["runs"]) for group in document(sweep)["groups"]) == 7


@pytest.mark.slow
def test_figures_and_tables_are_written_and_listed(sweep):
    files = ["curve.pdf", "curve.svg", "curves.csv", "groups.csv"]
    files += ["intervals.pdf", "intervals.svg", "runs.csv"]
    assert document(sweep)["files"] == files
    assert {path.name for path in (sweep / "compare").iterdir()} == {
        "index.html", "compare.json", *files
    }  # fmt: skip


@pytest.mark.slow
def test_a_table_of_somebody_else_is_not_replaced(sweep):
    (sweep / "compare").mkdir()
    (sweep / "compare" / "runs.csv").write_text("mine")
    with pytest.raises(InputError, match=r"runs\.csv exists and was not made by rl4p\.compare"):
        document(sweep)
    assert [path.name for path in (sweep / "compare").iterdir()] == ["runs.csv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["index.html", pytest.param("compare.json", marks=pytest.mark.slow)]
)
def test_only_an_earlier_comparison_is_replaced(sweep, name):
    document(sweep)
    document(sweep)
    (sweep / "compare" / name).write_text('{"mine": 1}')
    before = {path: path.read_bytes() for path in (sweep / "compare").iterdir()}
    with pytest.raises(InputError, match=rf"{name} exists and was not made by rl4p\.compare"):
        document(sweep)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_what_is_unknown_is_null(tmp_path):
    for seed in range(2):
        rows = [{"step": 0, METRIC: 0.5}]
        write_run(tmp_path / str(seed), overrides=[f"a={seed}"], config={"a": seed}, rows=rows)
    found = document(tmp_path)
    assert found["groups"][0]["interval"] is None
    assert found["groups"][0]["truncated"] is None
    (difference,) = found["differences"]
    assert difference["interval"] is difference["p_value"] is None
    assert difference["supported"] is False
    assert difference["probability_of_improvement"] == 0.5


@pytest.mark.slow
def test_another_metric_is_compared(sweep):
    comparison = compare(*read_folders([sweep]), sweep, metric="reward/mean")
    assert comparison.results[0].mean == 1.0
    (sweep / "file").write_text("")
    with pytest.raises(RunError, match="Cannot create"):
        compare(*read_folders([sweep]), sweep / "file" / "compare")
    with pytest.raises(InputError, match="metric=nothing is in none of the runs"):
        compare(*read_folders([sweep]), sweep, metric="nothing")


@pytest.mark.slow
def test_a_comparison_does_not_import_jax():
    code = "import sys, rl4p.tools.comparison.job;"
    code += "sys.exit(bool({'jax', 'mlflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_best_values_of_a_search_are_read(tmp_path):
    assert best_values(tmp_path) is None
    results = "name: optuna\nbest_params: {seed: 1, kl.beta: 0.1}\nbest_value: 0.5\n"
    (tmp_path / "optimization_results.yaml").write_text(results)
    assert best_values(tmp_path) == "best: seed=1 kl.beta=0.1 (pass@1 0.500)"


def read_options(words):
    return commands.read(words, COMPARE).options


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

    monkeypatch.setattr(job, "datetime", Noon)
    alone = write_run(tmp_path / "alone")
    expected = Path("outputs/comparisons/2026-11-23/12-00-05/compare")
    assert read(CompareOptions(run=(str(sweep), str(alone))))[2] == expected
    assert read(CompareOptions(run=(str(alone),)))[2] == expected
