"""Tests the curves of groups and the figures: their numbers, and what a hostile name can do."""

import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rl4p.tools.comparison.charts import (
    AXES,
    MOST_POINTS,
    SHOWN,
    Curve,
    curve,
    curves_of,
    draw_curves,
    figures_for_papers,
    figures_of_page,
    intervals,
    look,
    metrics_of_charts,
)
from rl4p.tools.comparison.measures import Metric
from rl4p.tools.runs import Run
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
    assert next(iter(metrics_of_charts(METRIC))) == "m"
    reward = Metric(names=("reward/mean",))
    drawn = [metric.names for metric in metrics_of_charts(reward).values()]
    assert drawn[0] == reward.names
    assert len(drawn) == len(set(drawn)) == len(metrics_of_charts(METRIC)) - 1


def curve_of(values, spread=0.0):
    middle = np.array(values, float)
    x = np.arange(len(middle)) * 10.0
    axes = {"step": x, "tokens": x * 1000, "seconds": x / 2}
    return Curve(x=axes, middle=middle, low=middle - spread, high=middle + spread)


@pytest.mark.parametrize(("axis", "tick"), [("step", "20"), ("tokens", "20k"), ("seconds", "10")])
def test_each_axis_has_its_own_ticks(axis, tick):
    figure = draw_curves({0: curve_of([0.0, np.nan, 1.0], 0.5)}, axis, is_share=False)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert tick in [label.get_text() for label in axes.get_xticklabels()]
    assert axes.get_xlabel() == AXES[axis]
    (line,) = axes.get_lines()
    assert line.get_markevery() == [2]  # the marker is at the end
    (band,) = axes.collections
    assert (band.get_datalim(axes.transData).y0, band.get_datalim(axes.transData).y1) == (-0.5, 1.5)


def test_the_ticks_of_few_steps_are_whole_steps():
    x = {axis: np.arange(1.0, 4.0) for axis in AXES}
    values = np.ones(3)
    figure = draw_curves(
        {0: Curve(x=x, middle=values, low=values, high=values)}, "step", is_share=True
    )
    (axes,) = figure.axes
    assert all(tick.is_integer() for tick in axes.get_xticks())


@pytest.mark.parametrize("value", [0.0, 1.0, -3e-7])
def test_a_constant_is_drawn_inside_the_chart(value):
    curves = {0: curve_of([value, value * (1 + 1e-15)])}
    (axes,) = draw_curves(curves, "step", is_share=False).axes
    low, high = axes.get_ylim()
    assert low < value < high
    assert len({label.get_text() for label in axes.get_yticklabels()}) > 1


def test_groups_differ_without_colour():
    looks = [(look(index)["linestyle"], look(index)["marker"]) for index in range(SHOWN)]
    assert len(set(looks)) == SHOWN
    looks = [(look(index)["color"], look(index)["linestyle"]) for index in range(30)]
    assert len(set(looks)) == 30


@pytest.mark.slow
def test_metrics_that_no_run_recorded_have_no_chart():
    only = figures_of_page(compare(runs(a=[0.1], b=[0.2]))).charts
    assert list(only) == ["Greedy pass@1 on held-out sums"]
    assert list(only["Greedy pass@1 on held-out sums"]) == list(AXES)
    both = figures_of_page(compare([run("a", 0, 0.5, **{"reward/mean": 1.0})])).charts
    assert list(both)[1:] == ["Mean reward of the samples"]


def test_a_figure_of_the_page_has_a_class_and_a_tooltip_for_each_group():
    (drawings,) = figures_of_page(compare(runs(**{"<b>": [0.1], "b": [0.2]}))).charts.values()
    drawing = drawings["step"]
    assert drawing.startswith("<svg")
    titles = re.findall(r'<g class="(g\d)"><title>([^<]*)</title>', drawing)
    assert set(titles) == {("g0", "advantage=b"), ("g1", "advantage=&lt;b&gt;")}
    assert not re.search(r'http|url\(|clip-path| id="(?!m)|href="[^#]', drawing)


NAMES = {f"{name}.{suffix}" for name in ("curve", "intervals") for suffix in ("pdf", "svg")}


def test_the_figures_show_every_seed_mean_and_interval():
    comparison = compare(runs(a=[0.1, 0.2, 0.3], b=[0.7, 0.8, 0.9], c=[0.5]))
    (axes,) = intervals(comparison).axes
    lines = [sorted(line.get_xdata()) for line in axes.get_lines()]
    seeds, interval, (iqm,) = lines[:3]
    assert seeds == [0.7, 0.8, 0.9]
    assert interval == list(comparison.results[0].interval)
    assert iqm == pytest.approx(0.8)
    assert len(lines) == 3 + 2 + 3  # one seed has no interval
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"advantage={name}" for name in "bca"
    ]
    metric = comparison.metric
    (axes,) = draw_curves(curves_of(comparison, metric), "step", is_share=metric.is_share).axes
    assert axes.get_lines()[0].get_ydata()[-1] == pytest.approx(0.8)
    assert axes.get_ylim() == (-0.02, 1.02)


@pytest.mark.slow
def test_files_have_fonts_that_publishers_accept_and_are_equal_again():
    files = figures_for_papers(compare(runs(a=[0.1, 0.2, 0.3], b=[0.7, 0.8, 0.9])))
    assert files.keys() == NAMES
    assert files == figures_for_papers(compare(runs(a=[0.1, 0.2, 0.3], b=[0.7, 0.8, 0.9])))
    for name, content in files.items():
        assert content.startswith(b"%PDF" if name.endswith("pdf") else b"<?xml")
        assert b"/Type3" not in content


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["$x^{2", "<script>a</script>&", "long " * 60, "w" * 400, "\x1b"])
def test_any_name_of_a_group_is_drawn(name):
    files = figures_for_papers(compare(runs(**{name: [0.1, 0.2, 0.3], "b": [0.7, 0.8, 0.9]})))
    tags = {each.tag for each in ElementTree.fromstring(files["intervals.svg"]).iter()}
    assert not any("script" in tag for tag in tags)
