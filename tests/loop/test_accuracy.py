"""Tests accuracies against enumeration, and their intervals against simulated truths."""

from itertools import combinations
from math import comb

import numpy as np
import pytest

from rl4p.loop.accuracy import (
    FEW,
    SampleChoice,
    Tally,
    best_of,
    estimate,
    majority_of,
    metrics_of,
    passed,
    wilson,
)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_equals_the_enumeration_of_all_choices(n):
    for k in range(1, n + 1):
        found = passed(np.arange(n + 1), n, k)
        for c in range(n + 1):
            draws = list(combinations([True] * c + [False] * (n - c), k))
            assert found[c] == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(1000, 3, 100), (4096, 1, 512), (10_000, 9_000, 2)])
def test_pass_at_k_is_exact_where_binomials_overflow_a_float(n, c, k):
    exact = 1 - comb(n - c, k) / comb(n, k)  # integers of Python, divided once
    assert passed(np.array([c]), n, k)[0] == pytest.approx(exact, rel=1e-12)


def test_pass_at_k_is_unbiased():
    """Its mean over samples of a prompt with chance p is 1 - (1 - p)^k."""
    n, k, p = 6, 3, 0.3
    chance = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    assert np.dot(chance, passed(np.arange(n + 1), n, k)) == pytest.approx(1 - (1 - p) ** k)


def test_intervals_of_greedy_responses_are_wilsons():
    """The bounds of 81 of 263 (Newcombe 1998, table I, method 3), and of 15 of 148 and 0 of 20."""
    for right, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        found = estimate(np.array([1.0] * right + [0.0] * (n - right)), n)
        assert (found.low, found.high) == (
            pytest.approx(low, abs=5e-5),
            pytest.approx(high, abs=5e-5),
        )
    assert wilson(0.0, 20) == (0.0, pytest.approx(0.1611, abs=5e-5))
    nothing, everything = estimate(np.zeros(FEW), FEW), estimate(np.ones(FEW), FEW)
    assert (nothing.low, nothing.high) == wilson(0.0, FEW)
    assert (everything.value, everything.high) == (1.0, 1.0)
    assert everything.low == pytest.approx(1 - nothing.high)


def test_samples_that_are_equal_count_once():
    """Eight equal samples of 50 prompts say as much as one sample of each."""
    right_P = np.array([1.0] * 20 + [0.0] * 30)
    once, eightfold = estimate(right_P, 50), estimate(right_P, 400)
    assert once == eightfold
    assert (once.low, once.high) == pytest.approx(wilson(0.4, 50))


def test_samples_that_differ_narrow_an_interval_up_to_their_number():
    values_P = np.full(50, 0.4)
    found = estimate(values_P, 400)
    assert (found.low, found.high) == pytest.approx(wilson(0.4, 400))
    some = estimate(np.array([0.25, 0.5, 0.5, 0.75] * 12), 400)
    assert wilson(0.5, 400)[0] > some.low > wilson(0.5, 48)[0]


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.5], 0.0, 1.0),  # one prompt says nothing about others
        ([1.0, 1.0, 1.0], 0.2965, 1.0),
        ([0.25, 0.5], 0.0189, 0.8978),
        ([0.0] * 29, 0.0, 0.1452),
        ([1.0] * 29, 0.8548, 1.0),
    ],
    ids=["one", "three", "two", "29 wrong", "29 right"],
)
def test_few_prompts_are_taken_with_two_that_are_right_and_two_that_are_wrong(values, low, high):
    """By hand for 0.25 and 0.5: 0.4583 +- 2.5706 x 0.4188 / sqrt(6)."""
    found = estimate(np.array(values), 8 * len(values))
    assert found.value == np.mean(values)
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


KINDS = {
    "equal": lambda random, p, shape: np.full(shape, p),
    "different": lambda random, p, shape: random.beta(2 * p, 2 - 2 * p, shape),
    "easy or hard": lambda random, p, shape: np.where(random.random(shape) < p, 0.97, 0.03),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize(
    "prompts", [2, 5, 29, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8, 12, 20))]
)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_intervals_of_few_prompts_cover_the_truth(kind, prompts, samples):
    """Some chance p of the prompts may be covered a little less than all of them together."""
    random, trials, covered = np.random.default_rng(2), 1000, []
    for p in (0.05, 0.3, 0.8):
        right = random.binomial(samples, kind(random, p, (trials, prompts))) / samples
        truth = 0.94 * p + 0.03 if kind is KINDS["easy or hard"] else p
        bounds = [estimate(row, prompts * samples) for row in right]
        covered.append(np.mean([each.low - 1e-12 <= truth <= each.high for each in bounds]))
    assert min(covered) >= 0.935  # with the error of 1,000 trials
    assert np.mean(covered) >= 0.95


def test_pass_at_k_has_as_many_trials_as_its_samples_make():
    """Each prompt has the same pass@3: the cap of the effective number is P (n // k)."""
    tally, n = Tally(), 8
    for prompt in range(40):
        tally.add("a", str(prompt), greedy=True, correct=True, valid=True)
        for sample in range(n):
            tally.add("a", str(prompt), greedy=False, correct=sample < 2, valid=True)
    score = tally.scores(n, (3, 5))["a"]
    for k, trials in ((3, 80), (5, 40)):
        found = score.pass_at_k[k]
        assert (found.low, found.high) == pytest.approx(wilson(found.value, trials))
    assert (score.average.low, score.average.high) == pytest.approx(wilson(0.25, 320))


@pytest.mark.parametrize(
    ("a", "b", "prompts", "samples", "k"),
    [
        (2, 1, 100, 1, 1),
        (0.5, 0.5, 60, 8, 1),
        (8, 1, 60, 8, 1),
        (1, 4, 60, 8, 4),
        (0.3, 3, 80, 4, 2),
    ],
)
def test_intervals_cover_the_truth(a, b, prompts, samples, k):
    """Prompts have chances drawn from Beta(a, b); the truth is the mean over all such prompts."""
    random = np.random.default_rng(1)
    trials = 2000
    chance = random.beta(a, b, (trials, prompts))
    right = random.binomial(samples, chance)
    truth = 1 - np.prod([(b + i) / (a + b + i) for i in range(k)])  # E[1 - (1 - p)^k]
    most = prompts * (samples // k)
    bounds = [estimate(passed(row, samples, k), most) for row in right]
    covered = np.mean([each.low <= truth <= each.high for each in bounds])
    assert 0.93 <= covered <= 0.97


def test_responses_are_counted_by_task_and_prompt():
    tally = Tally()
    for task, prompt, right in (("b", "1", True), ("b", "2", False), ("a", "1", True)):
        tally.add(task, prompt, greedy=True, correct=right, valid=True)
        for i in range(4):
            correct = prompt == "1" and i < 2
            tally.add(task, prompt, greedy=False, correct=correct, valid=i < 3 or task == "a")
    scores = tally.scores(4, (2, 4))
    assert list(scores) == ["b", "a"]
    b = scores["b"]
    assert (b.prompts, b.samples, b.invalid) == (2, 4, 2)
    assert (b.pass_at_1.value, b.average.value) == (0.5, 0.25)
    assert b.pass_at_k[2].value == pytest.approx((1 - 1 / 6) / 2)
    assert b.pass_at_k[4].value == 0.5
    assert metrics_of(scores)["eval/a/pass_at_2"] == pytest.approx(1 - 1 / 6)
    assert metrics_of(scores)["eval/b/invalid"] == 2.0
    assert "eval/a/invalid" not in metrics_of(scores)


def test_the_sample_with_the_highest_grade_is_the_best():
    rows = [(0.5, "7", True), (2.0, "8", False), (2.0, "7", True), (None, "9", False)]
    samples = [SampleChoice(*row) for row in rows]
    assert best_of(samples[:1]) == 1
    assert best_of(samples[:2]) == 0
    assert best_of(samples) == 0.5  # of two equal ones, the share
    assert best_of([SampleChoice(None, "7", True), SampleChoice(-9.0, "8", False)]) == 0


def test_the_answer_with_the_largest_sum_of_weights_is_the_majority():
    """Two samples of the weight 1 against one of e^0.5 = 1.65, or of e = 2.72."""
    two = [SampleChoice(0.0, "7", True), SampleChoice(0.0, "7", True)]
    assert majority_of([*two, SampleChoice(0.5, "8", False)]) == 1
    assert majority_of([*two, SampleChoice(1.0, "8", False)]) == 0
    assert majority_of([*two, SampleChoice(None, "8", False)]) == 1
    large = [SampleChoice(each.grade + 800, each.answer, each.correct) for each in two]
    assert majority_of([*large, SampleChoice(800.5, "8", False)]) == 1  # no overflow
    assert majority_of([SampleChoice(None, "8", False), SampleChoice(None, None, False)]) == 0


def test_chosen_answers_are_counted_by_task():
    tally = Tally()
    for prompt, grades in (("1", (1.0, 0.0)), ("2", (-1.0, 3.0)), ("3", (0.1, 0.2))):
        tally.add("a", prompt, greedy=True, correct=True, valid=True)
        for i, grade in enumerate(grades):
            choice = SampleChoice(grade, str(i), not i)
            tally.add("a", prompt, greedy=False, correct=not i, valid=True, choice=choice)
    metrics = metrics_of(tally.scores(2, ()))
    assert metrics["eval/a/best_of_2"] == metrics["eval/a/majority_of_2"] == pytest.approx(1 / 3)
    assert metrics["eval/a/avg_at_2"] == 0.5


def test_without_samples_there_is_only_pass_at_1():
    tally = Tally()
    tally.add("a", "1", greedy=True, correct=True, valid=True)
    assert metrics_of(tally.scores(0, ())) == {"eval/a/pass_at_1": 1.0, "eval/a/prompts": 1.0}
