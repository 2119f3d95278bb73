"""Tests the metric that is compared and the costs of a run, with numbers computed by hand."""

import math

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.comparison.measures import (
    Metric,
    Value,
    chosen_metric,
    costs,
    mean_costs,
    tokens,
)
from rl4p.tools.runs import Run

SUMS, WORDS = "eval/sums/pass_at_1", "eval/words/pass_at_1"


def run(*rows, **config):
    found = {"prompts_per_step": 3, "group_size": 2} | config
    rows = [{"step": step} | row for step, row in enumerate(rows)]
    return Run(name="run", seed=0, config=found, rows=rows, devices=4)


def test_the_default_metric_is_pass_at_1():
    only = run({"reward/mean": 1.0, SUMS: 0.5, "eval/sums/prompts": 8.0})
    metric = chosen_metric([only], None)
    assert metric.name == SUMS
    assert metric.is_share
    assert metric.resolution([only]) == 1 / 8


def test_the_metric_of_several_tasks_is_their_mean():
    both = run({SUMS: 0.5, WORDS: 1.0, "eval/sums/prompts": 8.0, "eval/words/prompts": 4.0})
    metric = chosen_metric([both], None)
    assert metric.name == f"mean of {SUMS}, {WORDS}"
    assert metric.of(both) == 0.75
    assert metric.resolution([both]) == 1 / 16


def test_the_last_value_counts_even_if_a_better_one_came_before():
    assert chosen_metric([run({SUMS: 0.5})], None).of(run({SUMS: 0.9}, {SUMS: 0.7}, {})) == 0.7
    assert math.isnan(Metric(names=(SUMS,)).of(run({WORDS: 1.0})))
    assert math.isnan(Metric(names=(SUMS, WORDS)).of(run({WORDS: 1.0})))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("last", 0.5),
        ("last_2", 0.75),
        ("last_4", math.nan),  # fewer values have none
        ("area", (4 * (0.0 + 1.0) / 2 + 6 * (1.0 + 0.5) / 2) / 10),
    ],
)
def test_other_numbers_of_a_curve_can_count(value, number):
    assert Value(value).of({0: 0.0, 4: 1.0, 10: 0.5}) == pytest.approx(number, nan_ok=True)
    assert math.isnan(Value(value).of({}))
    assert Value("area").of({3: 0.5}) == 0.5


@pytest.mark.parametrize("value", ["", "last_0", "last_-1", "mean", "area_5", "last_5.0"])
def test_another_number_is_refused(value):
    with pytest.raises(InputError, match="write value=last, last_5 or area"):
        Value(value)


def test_only_tasks_that_all_runs_have_are_compared_and_the_others_are_named():
    both, one, none = run({SUMS: 0.5, WORDS: 1.0}), run({SUMS: 0.5}), run({"reward/mean": 1.0})
    metric = chosen_metric([both, one, none], None)
    assert (metric.names, metric.others) == ((SUMS,), (WORDS,))
    with pytest.raises(InputError) as error:
        chosen_metric([run({WORDS: 0.5}), one, one], None)
    assert str(error.value) == (
        f"The 3 runs have no common task ({SUMS} in 2, {WORDS} in 1): choose metric=NAME, such as "
        "metric=reward/mean."
    )


def test_any_metric_can_be_chosen():
    metric = chosen_metric([run({"reward/mean": 3.0})], "reward/mean")
    assert metric.of(run({"reward/mean": 4.0})) == 4.0
    assert not metric.is_share
    assert metric.resolution([run({"reward/mean": 3.0})]) == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("eval/x", "metric=eval/x is in none of the runs; they have a, b."),
        (None, "one of a, b."),
    ],
)
def test_a_metric_that_no_run_has_is_an_error_that_lists_them(name, message):
    with pytest.raises(InputError) as error:
        chosen_metric([run({"a": 1.0}), run({"b": 1.0})], name)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["pass_at_1", "pass@1", "eval/pass_at_1", "eval/x/pas_at_1"])
def test_the_error_names_the_metrics_with_the_same_end(name):
    runs = [run({"eval/x/pass_at_1": 1.0, "eval/y/pass_at_1": 1.0, "eval/x/prompts": 1.0})]
    with pytest.raises(InputError) as error:
        chosen_metric(runs, name)
    assert str(error.value).endswith(": write metric=eval/x/pass_at_1 or metric=eval/y/pass_at_1")


def test_costs_are_sums_over_steps():
    row = {"time/step": 900.0, "rollout/response_tokens": 10.0, "rollout/truncated": 0.5}
    found = costs(run({}, row | {"update/ess": 0.8}, row | {"update/ess": 0.6}))
    assert found.seconds == 1800
    assert found.device_hours == 2  # four devices, half an hour
    assert found.tokens == 2 * 10 * 3 * 2
    assert found.truncated == 0.5
    assert found.effective == pytest.approx(0.7)
    assert costs(run(row)).seconds == 0  # the first evaluation is no step


def test_compilation_is_a_cost_of_its_own():
    first = {"time/evaluation_compile": 100.0}
    row = {"time/step": 900.0, "time/compile": 90.0}
    measured = costs(run(first, row, row | {"time/compile": 0.0, "time/evaluation_compile": 10.0}))
    assert measured.seconds == 810 + 900
    assert measured.compile_seconds == 200
    assert measured.device_hours == pytest.approx(4 * 1710 / 3600)
    assert measured.compile_device_hours == pytest.approx(4 * 200 / 3600)


def test_measured_speed_counts_the_tokens_of_a_step_of_another_size():
    fast = {"rollout/tokens_per_second": 50.0, "time/rollout": 2.0, "rollout/response_tokens": 9.0}
    assert tokens(run({}, fast)).tolist() == [100]


def test_unrecorded_costs_are_unknown_and_leave_the_mean():
    known, unknown = run({}, {"update/ess": 0.5}), run({}, {"update/ess": math.nan})
    assert math.isnan(costs(unknown).effective)
    assert mean_costs([known, unknown]).effective == 0.5
