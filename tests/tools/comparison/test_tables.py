"""Tests the CSV files: a row for each run, group and point, with the numbers of the comparison."""

import csv

import pytest

from rl4p.tools.comparison.tables import tables
from tests.support.compared_runs import SUMS, compare, run, runs


def test_each_run_group_and_point_has_a_row():
    comparison = compare([*runs(**{"a, b": [0.1, 0.2, 0.3]}), run("c", 7, 0.5)])
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
