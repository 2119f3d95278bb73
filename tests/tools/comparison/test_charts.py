"""Tests the curves of groups: the middle and the range of the seeds on three axes."""

import math
import re

import numpy as np
import pytest

from rl4p.tools.comparison import charts
from rl4p.tools.comparison.charts import (
    AXES,
    BOTTOM,
    HEIGHT,
    LEFT,
    LINE_OF_TEXT,
    MOST_POINTS,
    RIGHT,
    SHOWN,
    TOP,
    WIDTH,
    Curve,
    curve,
    drawing,
    figures,
    strips,
    style,
)
from rl4p.tools.comparison.measures import Metric
from rl4p.tools.comparison.runs import Run
from tests.support.compared_runs import compare, run, runs

METRIC = Metric(names=("m",))


def run_of(values, *, seconds=1.0, tokens=10.0):
    """Returns a run with these values of the metric by step; None records nothing."""
    trained = {"time/step": 7.0 + seconds, "time/compile": 7.0}
    trained |= {"rollout/response_tokens": tokens}
    rows = [
        {"step": step} | ({} if value is None else {"m": value}) | (trained if step else {})
        for step, value in enumerate(values)
    ]
    return Run(name="r", seed=0, config={"prompts_per_step": 2, "group_size": 3}, rows=rows)


def test_a_curve_has_the_middle_and_the_range_of_the_seeds():
    found = curve([run_of([0.0, 1.0]), run_of([0.0, 3.0]), run_of([3.0, 8.0])], METRIC)
    assert found.middle.tolist() == [1.0, 4.0]
    assert found.low.tolist() == [0.0, 1.0]
    assert found.high.tolist() == [3.0, 8.0]


def test_each_axis_is_the_sum_of_what_was_used_so_far():
    slow, fast = run_of([0.0, None, 1.0], seconds=3.0), run_of([0.0, None, 1.0], tokens=20.0)
    found = curve([slow, fast], METRIC)
    assert found.x["step"].tolist() == [0, 2]
    assert found.x["seconds"].tolist() == [0, (6 + 2) / 2]
    assert found.x["tokens"].tolist() == [0, (120 + 240) / 2]


def test_only_steps_that_every_seed_recorded_are_drawn():
    found = curve([run_of([0.0, 1.0, 2.0, 3.0]), run_of([0.0, None, 2.0])], METRIC)
    assert found.x["step"].tolist() == [0, 2]
    assert curve([run_of([0.0]), run_of([None, 1.0])], METRIC) is None


def test_values_that_are_not_finite_are_left_out():
    found = curve([run_of([0.0, math.nan, math.inf]), run_of([2.0, 1.0, math.nan])], METRIC)
    assert found.middle[:2].tolist() == [1.0, 1.0]
    assert np.isnan([found.middle[2], found.low[2], found.high[2]]).all()


def test_a_long_curve_is_averaged_between_its_ends():
    values = np.arange(1001.0).tolist()
    found = curve([run_of(values)], METRIC)
    assert len(found.middle) == MOST_POINTS
    assert (found.middle[0], found.middle[-1]) == (0, 1000)
    np.testing.assert_allclose(found.middle, found.x["step"])
    assert (np.diff(found.middle) > 0).all()


def test_the_metric_of_the_comparison_is_drawn_once_and_first():
    assert next(iter(figures(METRIC))) == "m"
    reward = Metric(names=("reward/mean",))
    drawn = [metric.names for metric in figures(reward).values()]
    assert drawn[0] == reward.names
    assert len(drawn) == len(set(drawn)) == len(figures(METRIC)) - 1


def curve_of(values, spread=0.0):
    middle = np.array(values, float)
    x = np.arange(len(middle)) * 10.0
    axes = {"step": x, "tokens": x * 1000, "seconds": x / 2}
    return Curve(x=axes, middle=middle, low=middle - spread, high=middle + spread)


def points(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]


def test_values_are_drawn_at_their_height_and_position():
    found = drawing({0: curve_of([0.0, 0.5, 1.0])}, "step", (0.0, 1.0))
    (line,) = found.lines
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    middle = ((LEFT + right) / 2, (TOP + bottom) / 2)
    assert points(line.path) == [(LEFT, bottom), pytest.approx(middle), (right, TOP)]
    assert line.end == (right, TOP)
    assert line.band == ""
    assert {text: at for at, text in found.y_ticks}["1"] == TOP
    assert {text: at for at, text in found.x_ticks}["20"] == right
    (line,) = drawing({0: curve_of([0.0, np.nan, 1.0])}, "step", None).lines
    assert len(points(line.path)) == 2  # without the value that is not finite


def test_the_band_goes_around_the_range_of_the_seeds():
    (line,) = drawing({0: curve_of([0.5, 0.5], spread=0.5)}, "step", (0.0, 1.0)).lines
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    assert points(line.band) == [(LEFT, TOP), (right, TOP), (right, bottom), (LEFT, bottom)]
    assert line.band.endswith("z")


@pytest.mark.parametrize(("axis", "tick"), [("step", "20"), ("tokens", "20k"), ("seconds", "10")])
def test_each_axis_has_its_own_ticks(axis, tick):
    found = drawing({0: curve_of([0.0, 0.5, 1.0])}, axis, None)
    assert tick in [text for _, text in found.x_ticks]
    assert found.lines[0].points[1][2].endswith(AXES[axis])


@pytest.mark.parametrize("value", [0.0, 1.0, -3e-7])
def test_a_constant_is_drawn_inside_the_chart(value):
    found = drawing({0: curve_of([value, value * (1 + 1e-15)])}, "step", None)
    assert all(TOP < y < HEIGHT - BOTTOM for _, y in points(found.lines[0].path))
    assert len({text for _, text in found.y_ticks}) > 1


@pytest.mark.parametrize("ends", [[0.0] * 8, [1.0] * 8, np.linspace(0.4, 0.5, 8)])
def test_names_at_the_ends_of_lines_do_not_overlap(ends):
    curves = {index: curve_of([0.0, end]) for index, end in enumerate(ends)}
    heights = sorted(line.label for line in drawing(curves, "step", (0.0, 1.0)).lines)
    assert min(np.diff(heights)) >= LINE_OF_TEXT - 1e-6
    assert heights[-1] <= HEIGHT - BOTTOM


def test_groups_differ_without_colour():
    looks = [(style(index).dashes, style(index).marker) for index in range(SHOWN)]
    assert len(set(looks)) == SHOWN
    looks = [(style(index).colour, style(index).dashes) for index in range(40)]
    assert len(set(looks)) == 40


def test_a_strip_shows_all_values_of_a_group_on_a_common_scale():
    found, ticks = strips(compare(runs(a=[0.0, 0.1, 0.2], b=[0.8, 0.9])))
    b, a = found
    assert a.interval is not None
    assert b.interval is None
    assert a.values[1] == pytest.approx(a.iqm)
    assert max(a.values) < min(b.values) < 100
    assert sorted(ticks) == ticks


def test_metrics_that_no_run_recorded_have_no_chart():
    (only,) = charts.charts(compare(runs(a=[0.1], b=[0.2])))
    assert only.title == "Greedy pass@1 on held-out sums"
    assert [drawn.axis for drawn in only.drawings] == list(AXES)
    both = charts.charts(compare([run("a", 0, 0.5, **{"reward/mean": 1.0})]))
    assert [chart.title for chart in both][1:] == ["Mean reward of the samples"]
