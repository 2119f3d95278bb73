"""Tests the comparison of groups: their order, their differences, and what is left out."""

import math
from pathlib import Path

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.comparison.runs import LeftOut
from tests.support.compared_runs import SUMS, compare, run, runs


def test_groups_are_in_the_order_of_their_interquartile_means_and_every_two_are_compared_once():
    found = compare(runs(a=[0.1, 0.2, 0.3], b=[0.9, 0.8, 0.7], c=[0.5, 0.5, 0.6]))
    assert [result.group.label for result in found.results] == ["b", "c", "a"]
    assert found.results[0].values == {0: 0.9, 1: 0.8, 2: 0.7}
    assert found.results[0].mean == pytest.approx(0.8)
    assert found.results[0].iqm == pytest.approx(0.8)
    assert found.page == Path("out/index.html")
    assert {(each.better, each.worse) for each in found.compared} == {(0, 1), (0, 2), (1, 2)}
    assert found.to_best(0) is None
    difference, supported = found.to_best(2)
    assert difference.estimate == pytest.approx(-0.6)
    assert difference.probability == 0
    assert supported is found.compared[1].supported


def test_a_difference_that_all_seeds_show_is_supported():
    (found,) = compare(runs(a=[0.70, 0.72, 0.71], b=[0.90, 0.91, 0.92])).compared
    assert found.supported
    assert found.difference.estimate == pytest.approx(0.2)
    assert found.difference.probability == 1


def test_the_better_group_of_a_pair_is_better_for_equal_seeds():
    """Group a has the higher mean by its lucky fourth seed, but loses to b for each common one."""
    found = compare(runs(a=[0.50, 0.51, 0.52], b=[0.60, 0.61, 0.62]) + [
        run("a", seed, 0.99) for seed in (3, 4)
    ])  # fmt: skip
    assert [result.group.label for result in found.results] == ["a", "b"]
    (pair,) = found.compared
    assert (pair.better, pair.worse) == (1, 0)
    assert pair.difference.estimate == pytest.approx(0.1)
    assert found.to_best(1)[0] == pair.difference  # b minus a, the first group


def test_an_interval_of_a_share_is_within_its_range():
    low, high = compare(runs(a=[1.0, 0.9, 1.0])).results[0].interval
    assert 0 <= low < high == 1


@pytest.mark.parametrize(("value", "word"), [(math.nan, "missing"), (math.inf, "inf")])
def test_a_run_without_a_finite_value_is_left_out_and_named(value, word):
    found = compare([*runs(a=[0.1, 0.2]), run("a", 2, value)], [LeftOut(name="x", reason="y")])
    assert [(each.name, each.reason) for each in found.left_out] == [
        ("x", "y"),
        ("a-2", f"its last {SUMS} is {word}"),
    ]
    assert list(found.results[0].values) == [0, 1]


def test_a_repeated_run_is_left_out_and_named():
    found = compare([*runs(a=[0.1, 0.2]), run("a", 1, 0.9)])
    assert found.results[0].values == {0: 0.1, 1: 0.9}
    assert "a-1" in found.left_out[0].name


def test_runs_of_which_none_finished_are_an_error_that_names_them():
    with pytest.raises(InputError) as error:
        compare([], [LeftOut(name="1", reason="it failed at step 3")])
    assert str(error.value) == "None of the 1 runs has finished. 1: it failed at step 3."
    with pytest.raises(InputError, match="is not a finite number in any of the 1 runs"):
        compare([run("a", 0, math.nan)])


def test_another_metric_is_compared_on_request():
    members = [run("a", 0, 0.5, other=7.0), run("b", 0, 0.9, other=3.0)]
    assert [each.iqm for each in compare(members, metric="other").results] == [7, 3]
