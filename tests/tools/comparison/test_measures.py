"""Tests the metric that is compared and the costs of a run, with numbers computed by hand."""

import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from scipy.stats import t as student

from rl4p.base.errors import InputError
from rl4p.tools.comparison.measures import (
    FEWEST_QUESTIONS,
    Metric,
    Value,
    chosen_metric,
    costs,
    mean_costs,
    question_difference,
    tokens,
)
from rl4p.tools.runs import Questions, Run
from tests.support.compared_runs import asked, run_with

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


def group(*runs, digests=("q",)):
    """Returns a group by seed; a run has the scores of each task."""
    return {
        seed: [
            Questions(digest=digest, scores=tuple(map(float, scores)))
            for digest, scores in zip(digests, tasks, strict=True)
        ]
        for seed, tasks in enumerate(runs)
    }


def test_the_difference_over_questions_is_that_of_the_means():
    a, b = np.zeros((2, 40)), np.zeros((1, 40))
    a[0, :20], a[1, :30], b[0, :10] = 1, 1, 1
    found = question_difference(group([a[0]], [a[1]]), group([b[0]]))
    assert found.estimate == pytest.approx((0.5 + 0.75) / 2 - 0.25)
    assert found.questions == 40
    low, high = found.interval
    assert low < found.estimate < high


def test_tasks_count_alike_however_many_questions_they_have():
    """Task 1 has 30 questions and no noise; task 2 has 90."""
    random = np.random.default_rng(0)
    one, two = (np.ones(30), np.zeros(30)), random.integers(0, 2, (2, 90))
    digests = ("one", "two")
    found = question_difference(
        group([one[0], two[0]], digests=digests), group([one[1], two[1]], digests=digests)
    )
    gap = two[0] - two[1]
    assert found.estimate == pytest.approx((1 + gap.mean()) / 2)
    assert found.questions == 120
    half = norm.ppf(0.975) * gap.std() / math.sqrt(90) / 2
    assert found.interval == pytest.approx(
        (found.estimate - half, found.estimate + half), abs=0.1 * half
    )


def test_the_bootstrap_of_single_runs_is_the_paired_standard_error():
    """As 2411.00640 gives it: the deviation of the differences, by the root of their number."""
    random = np.random.default_rng(1)
    a = random.random(400) < 0.6
    b = np.where(random.random(400) < 0.8, a, random.random(400) < 0.5)  # mostly as a
    found = question_difference(group([a]), group([b]))
    gap = a.astype(float) - b
    half = norm.ppf(0.975) * gap.std(ddof=1) / math.sqrt(400)
    low, high = found.interval
    assert (high - low) / 2 == pytest.approx(half, rel=0.03)
    unpaired = norm.ppf(0.975) * math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 400)
    assert (high - low) / 2 < 0.6 * unpaired
    assert question_difference(group([a]), group([b])) == found  # the same draws
    one, other = found.reversed(), question_difference(group([b]), group([a]))
    assert one.estimate == other.estimate
    assert one.interval == pytest.approx(other.interval, abs=2e-3)


def test_seeds_that_differ_on_all_questions_have_students_interval():
    """With 4,000 questions of equal difficulty, the seeds alone are uncertain."""
    levels = np.array([0.50, 0.54, 0.61])
    random = np.random.default_rng(2)
    a = random.random((3, 4_000)) < levels[:, None]
    b = random.random((3, 4_000)) < 0.3
    runs = group(*([row] for row in a)), group(*([row] for row in b))
    found = question_difference(*runs)
    gaps = a.mean(1)
    half = student.ppf(0.975, 2) * gaps.std(ddof=1) / math.sqrt(3)
    assert (found.interval[1] - found.interval[0]) / 2 == pytest.approx(half, rel=0.1)
    paired = question_difference(group(*([row] for row in a)), group(*([row] for row in a & True)))
    assert isinstance(paired, str)  # no question differs
    shared = a & (random.random((3, 4_000)) < 0.9)  # of each seed, nine tenths of what a has
    runs = group(*([row] for row in a)), group(*([row] for row in shared))
    alone, by_seed = question_difference(*runs), question_difference(*runs, common=(0, 1, 2))
    assert by_seed.estimate == alone.estimate
    assert np.ptp(by_seed.interval) < np.ptp(alone.interval) / 2


def test_noise_of_the_questions_is_no_difference_between_seeds():
    """The means of the three runs differ by less than equal policies' would."""
    a = np.zeros((3, 60))
    for seed, row in enumerate(a):
        row[20 * seed : 20 * seed + 20] = 1
    a[0, 59] = 1
    b = np.zeros(60)
    found = question_difference(group(*([row] for row in a)), group([b]))
    assert found == question_difference(group([a.mean(axis=0)]), group([b]))


def test_seeds_that_only_one_group_has_are_left_out_of_pairs():
    random = np.random.default_rng(3)
    a, b = random.integers(0, 2, (4, 50)), random.integers(0, 2, (3, 50))
    found = question_difference(
        group(*([row] for row in a)), group(*([row] for row in b)), common=(0, 1, 2)
    )
    assert found.estimate == pytest.approx(a[:3].mean() - b.mean())


COMPARED = {
    "one seed": (1, 0.0, False),
    "three equal seeds": (3, 0.0, False),
    "three seeds": (3, 0.03, False),
    "three seeds in pairs": (3, 0.03, True),
    "five seeds in pairs": (5, 0.03, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("questions", [FEWEST_QUESTIONS, 120])
@pytest.mark.parametrize(("seeds", "spread", "paired"), COMPARED.values(), ids=COMPARED)
def test_the_interval_covers_the_true_difference(seeds, spread, paired, questions):
    """Questions differ in difficulty; each run has a level of its own beside."""
    random = np.random.default_rng(seeds)
    population = expit(2 * random.normal(size=1_000_000) + np.array([[0.2], [0.0]])).mean(1)
    truth, hits, trials = population[0] - population[1], 0, 400
    for _ in range(trials):
        difficulty, sides = 2 * random.normal(size=questions), []
        for better in (0.2, 0.0):
            level = random.normal(0, spread, (seeds, 1))
            chance = np.clip(expit(difficulty + better) + level, 0, 1)
            right = random.random((seeds, questions)) < chance
            sides.append(group(*([row] for row in right)))
        found = question_difference(*sides, common=range(seeds) if paired else ())
        hits += found.interval[0] <= truth <= found.interval[1]
    assert 0.88 <= hits / trials <= 0.995  # 90 to 99 %, with the error of 400 trials


def test_unequal_questions_are_not_paired():
    a = asked([1.0] * 30 + [0.0] * 10)
    several = {0: [*a.values()]}
    fewer = {0: [*asked([1.0] * 30, "fewer").values()]}
    assert question_difference(several, fewer) == "they answered 30 and 40 questions"
    changed = {0: [*asked([1.0] * 40, "changed").values()]}
    assert question_difference(several, changed) == (
        "their 40 questions differ in ids, texts, answers or metadata"
    )
    few = group([[1.0, 0.0]]), group([[0.0, 1.0]])
    assert question_difference(*few) == "2 questions are too few, and 30 are enough"
    assert question_difference(several, several) == (
        "they differ by the same on each question, which gives no interval"
    )


def test_only_the_questions_behind_the_number_count():
    scores = [1.0, 0.0, 1.0, 1.0]
    known = run_with("a", 0, scores)
    metric = chosen_metric([known], None)
    (questions,) = metric.questions(known)
    assert questions.scores == tuple(scores)
    assert Metric(names=(SUMS,), value=Value("area")).questions(known) is None
    assert Metric(names=(SUMS, WORDS)).questions(known) is None
    other = run_with("a", 0, scores)
    other.rows[0][SUMS] = 0.5  # the questions are of another evaluation
    assert metric.questions(other) is None


def test_the_costs_of_an_evaluation_are_not_known():
    trained = run({}, {"time/step": 3.0})
    assert costs(trained).seconds == 3.0
    evaluation = Run(name="e", seed=0, config={}, rows=trained.rows, evaluation=True)
    assert all(math.isnan(cost) for cost in vars(costs(evaluation)).values())
