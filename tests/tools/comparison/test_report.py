"""Tests the files for scripts and the tables on the terminal."""

import json
import subprocess
import sys

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.tools.comparison.report import best_values, compare, print_comparison
from rl4p.tools.comparison.runs import read_folders
from tests.support.compared_runs import METRIC, write_run


def document(folder):
    compare(*read_folders([folder]), folder / "compare")
    return json.loads((folder / "compare" / "compare.json").read_text())


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


def test_figures_and_tables_are_written_and_listed(sweep):
    files = ["curve.pdf", "curve.svg", "curves.csv", "groups.csv"]
    files += ["intervals.pdf", "intervals.svg", "runs.csv"]
    assert document(sweep)["files"] == files
    assert {path.name for path in (sweep / "compare").iterdir()} == {
        "index.html", "compare.json", *files
    }  # fmt: skip


def test_a_table_of_somebody_else_is_not_replaced(sweep):
    (sweep / "compare").mkdir()
    (sweep / "compare" / "runs.csv").write_text("mine")
    with pytest.raises(InputError, match=r"runs\.csv exists and was not made by rl4p\.compare"):
        document(sweep)
    assert [path.name for path in (sweep / "compare").iterdir()] == ["runs.csv"]


@pytest.mark.parametrize("name", ["index.html", "compare.json"])
def test_only_an_earlier_comparison_is_replaced(sweep, name):
    document(sweep)
    document(sweep)
    (sweep / "compare" / name).write_text('{"mine": 1}')
    before = {path: path.read_bytes() for path in (sweep / "compare").iterdir()}
    with pytest.raises(InputError, match=rf"{name} exists and was not made by rl4p\.compare"):
        document(sweep)
    assert {path: path.read_bytes() for path in before} == before


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


def test_another_metric_is_compared(sweep):
    comparison = compare(*read_folders([sweep]), sweep, metric="reward/mean")
    assert comparison.results[0].mean == 1.0
    (sweep / "file").write_text("")
    with pytest.raises(RunError, match="Cannot create"):
        compare(*read_folders([sweep]), sweep / "file" / "compare")
    with pytest.raises(InputError, match="metric=nothing is in none of the runs"):
        compare(*read_folders([sweep]), sweep, metric="nothing")


def test_the_terminal_shows_tables_sentences_left_out_runs_and_the_page(sweep, capsys):
    write_run(sweep / "bad", status="failed")
    comparison = compare(*read_folders([sweep]), sweep / "compare")
    print_comparison(comparison)
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    row = next(line for line in lines if line.startswith("advantage=grpo"))
    assert "0.710" in row
    assert "-0.200*" in row
    assert "* the seeds support this difference" in shown
    assert "The seeds support that advantage=rloo is better" in " ".join(shown.split())
    # A long line is wrapped, within the path of the folder too.
    assert "bad:itfailedatstep4" in "".join(shown.split())
    assert lines[-1] == str(sweep / "compare" / "index.html")
    assert max(map(len, lines[:-1])) <= 80


def test_names_are_no_markup_and_do_not_control_the_terminal(tmp_path, capsys):
    for name in ("[red]x", "[/]\x1b[2J"):
        safe = name.replace("\x1b", "")
        write_run(tmp_path / safe, overrides=[f"a={name}"], config={"a": safe})
    print_comparison(compare(*read_folders([tmp_path]), tmp_path))
    shown = capsys.readouterr().out
    assert "a=[red]x" in shown
    assert "a=[/][2J" in shown


def test_a_comparison_does_not_import_jax():
    code = "import sys, rl4p.tools.comparison.report, rl4p.tools.comparison.sources;"
    code += "sys.exit(bool({'jax', 'mlflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_best_values_of_a_search_are_read(tmp_path):
    assert best_values(tmp_path) is None
    results = "name: optuna\nbest_params: {seed: 1, kl.beta: 0.1}\nbest_value: 0.5\n"
    (tmp_path / "optimization_results.yaml").write_text(results)
    assert best_values(tmp_path) == "best: seed=1 kl.beta=0.1 (pass@1 0.500)"
