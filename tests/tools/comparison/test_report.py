"""Tests the tables: on the terminal, and a CSV row for each run, group and point."""

import csv

import pytest

from rl4p.tools.comparison.job import compare
from rl4p.tools.comparison.report import document, print_comparison, tables
from rl4p.tools.runs import read_folders
from tests.support import compared_runs
from tests.support.compared_runs import SUMS, run, run_with, runs, write_run


@pytest.mark.slow
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


@pytest.mark.slow
def test_names_are_no_markup_and_do_not_control_the_terminal(tmp_path, capsys):
    for name in ("[red]x", "[/]\x1b[2J"):
        safe = name.replace("\x1b", "")
        write_run(tmp_path / safe, overrides=[f"a={name}"], config={"a": safe})
    print_comparison(compare(*read_folders([tmp_path]), tmp_path))
    shown = capsys.readouterr().out
    assert "a=[red]x" in shown
    assert "a=[/][2J" in shown


def test_differences_over_questions_are_in_the_table_and_in_the_document(capsys):
    a, b = [1.0] * 30 + [0.0] * 10, [1.0] * 20 + [0.0] * 20
    comparison = compared_runs.compare([run_with("a", 0, a), run_with("b", 0, b)])
    print_comparison(comparison)
    shown = capsys.readouterr().out
    paired = comparison.compared[0].questions
    low, high = paired.interval
    row = shown.partition("Over the same questions")[2].splitlines()[2]
    assert row.split() == ["advantage=b", "-0.250", f"[{-high:.3f},", f"{-low:.3f}]", "40"]
    (difference,) = document(comparison)["differences"]
    assert difference["questions"] == {
        "estimate": 0.25, "interval": paired.interval, "questions": 40
    }  # fmt: skip
    assert difference["questions_not_paired"] is None
    other = compared_runs.compare([run_with("a", 0, a), run_with("b", 0, b, "other")])
    print_comparison(other)
    assert "Over the same questions" not in capsys.readouterr().out
    (difference,) = document(other)["differences"]
    assert difference["questions"] is None
    assert difference["questions_not_paired"].startswith("their 40 questions differ")


def test_each_run_group_and_point_has_a_row():
    comparison = compared_runs.compare([*runs(**{"a, b": [0.1, 0.2, 0.3]}), run("c", 7, 0.5)])
    read = {
        name: list(csv.DictReader(text.splitlines())) for name, text in tables(comparison).items()
    }
    assert read.keys() == {"runs.csv", "groups.csv", "curves.csv"}
    assert [(row["group"], row["seed"], row["last"]) for row in read["runs.csv"]] == [
        ("advantage=c", "7", "0.5"),
        ("advantage=a, b", "0", "0.1"),
        ("advantage=a, b", "1", "0.2"),
        ("advantage=a, b", "2", "0.3"),
    ]
    one, three = read["groups.csv"]
    assert (one["seeds"], one["interval_low"]) == ("1", "")
    assert float(three["interval_high"]) == comparison.results[1].interval[1]
    points = [row for row in read["curves.csv"] if row["group"] == "advantage=a, b"]
    assert {row["metric"] for row in points} == {SUMS}
    last = points[-1]
    assert [float(last[name]) for name in ("iqm", "lowest", "highest")] == pytest.approx(
        [0.2, 0.1, 0.3]
    )
