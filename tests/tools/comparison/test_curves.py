"""Tests the curves of groups: the middle and the range of the seeds on three axes."""

import math

import numpy as np

from rl4p.tools.comparison.curves import MOST_POINTS, curve, figures
from rl4p.tools.comparison.measures import Metric
from rl4p.tools.comparison.runs import Run

METRIC = Metric(names=("m",))


def run(values, *, seconds=1.0, tokens=10.0):
    """Returns a run with these values of the metric by step; None records nothing."""
    trained = {"time/step": 7.0 + seconds, "time/compile": 7.0}
    trained |= {"rollout/response_tokens": tokens}
    rows = [
        {"step": step} | ({} if value is None else {"m": value}) | (trained if step else {})
        for step, value in enumerate(values)
    ]
    return Run(name="r", seed=0, config={"prompts_per_step": 2, "group_size": 3}, rows=rows)


def test_a_curve_has_the_middle_and_the_range_of_the_seeds():
    found = curve([run([0.0, 1.0]), run([0.0, 3.0]), run([3.0, 8.0])], METRIC)
    assert found.middle.tolist() == [1.0, 4.0]
    assert found.low.tolist() == [0.0, 1.0]
    assert found.high.tolist() == [3.0, 8.0]


def test_each_axis_is_the_sum_of_what_was_used_so_far():
    slow, fast = run([0.0, None, 1.0], seconds=3.0), run([0.0, None, 1.0], tokens=20.0)
    found = curve([slow, fast], METRIC)
    assert found.x["step"].tolist() == [0, 2]
    assert found.x["seconds"].tolist() == [0, (6 + 2) / 2]
    assert found.x["tokens"].tolist() == [0, (120 + 240) / 2]


def test_only_steps_that_every_seed_recorded_are_drawn():
    found = curve([run([0.0, 1.0, 2.0, 3.0]), run([0.0, None, 2.0])], METRIC)
    assert found.x["step"].tolist() == [0, 2]
    assert curve([run([0.0]), run([None, 1.0])], METRIC) is None


def test_values_that_are_not_finite_are_left_out():
    found = curve([run([0.0, math.nan, math.inf]), run([2.0, 1.0, math.nan])], METRIC)
    assert found.middle[:2].tolist() == [1.0, 1.0]
    assert np.isnan([found.middle[2], found.low[2], found.high[2]]).all()


def test_a_long_curve_is_averaged_between_its_ends():
    values = np.arange(1001.0).tolist()
    found = curve([run(values)], METRIC)
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
