"""Tests the statistics against known answers: hand numbers, coverage, and false differences."""

import math
from pathlib import Path

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.tools.comparison.statistics import (
    DRAWS,
    ERROR_RATE,
    POWER,
    detectable_difference,
    difference,
    interval,
    iqm,
    probability_of_improvement,
    supported,
)
from rl4p.tools.runs import LeftOut
from tests.support.compared_runs import SUMS, compare, run, run_with, runs

SWEEPS = 2000
STUDENT_2 = 4.3027  # the two-sided 95 % quantile of Student's t with two degrees of freedom


def collapsing(random, shape):
    """A fifth of the seeds fails to learn."""
    values = np.where(random.uniform(size=shape) < 0.2, 0.2, 0.9)
    return values + random.normal(0, 0.03, shape)


# Distributions of the last values of seeds.
NORMAL = {"normal": lambda random, shape: random.normal(0.8, 0.05, shape)}
OTHERS = {
    "skewed": lambda random, shape: random.beta(8, 2, shape),
    "near one": lambda random, shape: random.beta(20, 1, shape),
    "heavy-tailed": lambda random, shape: random.standard_t(3, shape),
    "counts": lambda random, shape: random.binomial(256, 0.95, shape) / 256,
    "collapsing": collapsing,
}
LIGHT = {
    "uniform": lambda random, shape: random.uniform(size=shape),
    "two values": lambda random, shape: random.integers(0, 2, shape).astype(float),
    "triangular": lambda random, shape: random.triangular(0, 1, 1, shape),
}


def by_seed(values, first=0):
    return dict(enumerate(map(float, values), first))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),  # fewer than four lose none
        ([100.0, 1.0, 2.0, -50.0], 1.5),
        ([5.0, 4.0, 3.0, 2.0, 100.0], 4.0),
        (list(range(8)), 3.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(values, expected):
    assert iqm(values) == expected


def test_the_interval_of_three_seeds_is_that_of_student():
    low, high = interval([0.7, 0.8, 0.9])
    assert (low + high) / 2 == pytest.approx(0.8)
    assert (high - low) / 2 == pytest.approx(STUDENT_2 * 0.1 / math.sqrt(3), rel=0.02)


def test_an_interval_moves_and_grows_with_its_values():
    values = np.array([0.2, 0.5, 0.4, 0.9, 0.3])
    low, high = interval(values)
    moved = interval(10 * values - 3)
    assert moved == pytest.approx((10 * low - 3, 10 * high - 3))


def test_more_seeds_give_a_narrower_interval():
    widths = []
    for count in range(3, 12):
        low, high = interval(np.tile([-1.0, 1.0], count)[:count] * math.sqrt((count - 1) / count))
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.6]])
def test_one_or_two_seeds_have_no_interval(values):
    assert interval(values) is None


def test_equal_values_have_an_interval_only_with_a_known_resolution():
    assert interval([0.5, 0.5, 0.5]) is None
    low, high = interval([0.5, 0.5, 0.5], resolution=1 / 256)
    assert 0.5 - 1 / 128 < low < 0.5 < high < 0.5 + 1 / 128
    assert interval([0.5, 0.5, 0.6]) == interval([0.5, 0.5, 0.6], resolution=1 / 256)


def test_an_interval_ends_at_the_bounds():
    assert interval([0.0, 0.5, 1.0], bounds=(0.0, 1.0)) == (0.0, 1.0)


def covered(draw, count, seed):
    """Returns the share of simulated sweeps whose interval contains the population's IQM."""
    truth = iqm(draw(np.random.default_rng(seed), 1_000_000))
    random = np.random.default_rng(seed + 1)
    intervals = [interval(draw(random, count), resolution=1 / 256) for _ in range(SWEEPS)]
    return np.mean([low <= truth <= high for low, high in intervals])


@pytest.mark.parametrize("count", [3, 4, 5, 8, 10])
@pytest.mark.parametrize("draw", NORMAL.values(), ids=NORMAL)
def test_intervals_cover_the_truth_of_normal_values(draw, count):
    assert covered(draw, count, seed=count) == pytest.approx(0.95, abs=0.015)


@pytest.mark.quick(3)
@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("draw", OTHERS.values(), ids=OTHERS)
def test_intervals_cover_the_truth_of_other_values(draw, count):
    assert covered(draw, count, seed=count) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("count", "share"), [(3, 0.76), (5, 0.90)])
def test_a_percentile_bootstrap_of_a_few_seeds_would_be_too_narrow(count, share):
    """The reason for another interval, with the figures in the head of the module."""
    random = np.random.default_rng(0)
    values = random.normal(size=(SWEEPS, count))
    chosen = np.sort(values[:, random.integers(0, count, (1000, count))], axis=-1)
    cut = count // 4
    low, high = np.quantile(chosen[..., cut : count - cut].mean(-1), [0.025, 0.975], axis=1)
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(share, abs=0.02)


def called_different(draw, count, seed, *, paired=True, groups=2, sweeps=SWEEPS):
    """Returns the share of sweeps of equal algorithms in which any difference is supported."""
    random = np.random.default_rng(seed)
    wrong = 0
    for _ in range(sweeps):
        values = draw(random, (groups, count))
        members = [by_seed(row, 0 if paired else 100 * k) for k, row in enumerate(values)]
        found = [difference(a, b).p_value for k, a in enumerate(members) for b in members[k + 1 :]]
        wrong += any(supported(found))
    return wrong / sweeps


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 10])
@pytest.mark.parametrize("draw", (NORMAL | OTHERS).values(), ids=NORMAL | OTHERS)
def test_equal_algorithms_are_rarely_called_different(draw, count):
    assert called_different(draw, count, seed=10 + count) <= 0.05


@pytest.mark.quick(2)
@pytest.mark.parametrize("count", [3, 5, 6, 10])
@pytest.mark.parametrize("draw", LIGHT.values(), ids=LIGHT)
def test_equal_algorithms_with_light_tails_are_rarely_called_different(draw, count):
    assert called_different(draw, count, seed=20 + count) <= 0.055  # with the error of 2,000 sweeps


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"paired": False}, {"groups": 6}], ids=str)
def test_equal_algorithms_without_common_seeds_or_many_are_rarely_called_different(options):
    assert 0 < called_different(NORMAL["normal"], 5, seed=1, sweeps=500, **options) <= 0.05


@pytest.mark.slow
def test_two_equal_algorithms_are_rarely_called_different_among_others():
    """Four other groups differ clearly, so that nearly all differences are supported."""
    random = np.random.default_rng(6)
    levels = np.array([0, 0, 10, 20, 30, 40.0])[:, None]
    wrong, right = 0, []
    for _ in range(SWEEPS):
        members = [by_seed(row) for row in random.normal(levels, size=(6, 5))]
        found = [difference(a, b).p_value for k, a in enumerate(members) for b in members[k + 1 :]]
        equal, *others = supported(found)
        wrong += equal
        right.append(np.mean(others))
    assert wrong / SWEEPS <= 0.05
    assert np.mean(right) > 0.99


def test_a_clear_difference_of_three_seeds_is_supported():
    found = difference(by_seed([0.9, 0.91, 0.92]), by_seed([0.70, 0.72, 0.71]))
    assert found.estimate == pytest.approx(0.2)
    assert found.pairs == 3
    assert found.interval[0] > 0
    assert supported([found.p_value]) == [True]


def test_pairs_cancel_the_noise_of_a_seed():
    """Seeds differ by much more than the algorithms, which differ for each seed alike."""
    a = by_seed([0.1, 0.5, 0.9, 0.3, 0.7])
    b = {seed: value - 0.05 + 0.002 * (-1) ** seed for seed, value in a.items()}
    paired = difference(a, b)
    apart = difference(a, {seed + 100: value for seed, value in b.items()})
    assert supported([paired.p_value]) == [True]
    assert apart.pairs == 0
    assert supported([apart.p_value]) == [False]
    assert paired.estimate == pytest.approx(apart.estimate, abs=0.004)


def test_a_supported_difference_is_one_whose_interval_excludes_zero():
    random = np.random.default_rng(3)
    for _ in range(200):
        a, b = random.normal([[1.0], [0.0]], size=(2, 5))
        found = difference(by_seed(a), by_seed(b))
        low, high = found.interval
        assert supported([found.p_value]) == [not low <= 0 <= high]


def test_a_difference_changes_its_sign_with_the_order():
    random = np.random.default_rng(4)
    a, b = by_seed(random.normal(size=5)), by_seed(random.normal(size=5))
    one, other = difference(a, b), difference(b, a)
    assert one.estimate == pytest.approx(-other.estimate)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    assert one.p_value == other.p_value
    assert one.probability == pytest.approx(1 - other.probability)
    assert one.reversed().interval == pytest.approx(other.interval)


def test_seeds_that_only_one_group_has_are_left_out_of_pairs():
    a = by_seed([0.9, 0.8, 0.7, 0.95, 0.85])
    b = by_seed([0.5, 0.4, 0.3])
    found = difference(a, b, resolution=1 / 256)
    assert found.pairs == 3
    assert found.estimate == pytest.approx(0.4)


def test_groups_with_too_few_common_seeds_are_not_paired():
    assert difference(by_seed([0.9, 0.8, 0.7]), by_seed([0.5, 0.4, 0.3], first=1)).pairs == 0
    many = by_seed(np.linspace(0, 1, 10))
    assert difference(many, by_seed(np.linspace(0, 1, 10), first=7)).pairs == 0


def test_a_group_of_two_seeds_supports_no_difference():
    found = difference(by_seed([0.9, 0.91]), by_seed([0.1, 0.11, 0.12]))
    assert found.estimate == pytest.approx(0.795)
    assert found.interval is None
    assert found.p_value is None
    assert supported([None]) == [False]


def test_constant_groups_differ_by_the_resolution_of_their_metric():
    ones, less = by_seed([1.0, 1.0, 1.0]), by_seed([0.2, 0.2, 0.2])
    assert difference(ones, less).p_value is None
    assert supported([difference(ones, less, resolution=1 / 256).p_value]) == [True]
    next_value = by_seed([255 / 256] * 3)
    assert supported([difference(ones, next_value, resolution=1 / 256).p_value]) == [False]


# Values with differences that are equal up to rounding, and the resolution of the metric.
ROUNDED = {
    "tenths": ([0.7, 0.8, 0.9], [0.6, 0.7, 0.8], 0.1),
    "other tenths": ([0.3, 0.6, 0.9], [0.2, 0.5, 0.8], 0.1),
    "twentieths": ([0.35, 0.45, 0.55], [0.3, 0.4, 0.5], 0.05),
    "thirds": ([1 / 3, 2 / 3, 1.0], [0.0, 1 / 3, 2 / 3], 1 / 3),
    "means of tasks": ([(0.1 + 0.2) / 2, 0.3, 0.45], [0.05, 0.2, 0.35], 0.1),
    "five seeds": ([0.1, 0.3, 0.5, 0.7, 0.9], [0.0, 0.2, 0.4, 0.6, 0.8], 0.1),
    "many seeds": ([x / 10 for x in range(1, 10)], [x / 10 for x in range(9)], 0.1),
    "float32": (np.float32([0.7, 0.8, 0.9]), np.float32([0.6, 0.7, 0.8]), 0.1),
    "large": ([700.1, 800.1, 900.1], [600.1, 700.1, 800.1], 100.0),
    "worse": ([0.6, 0.7, 0.8], [0.7, 0.8, 0.9], 0.1),
}


@pytest.mark.parametrize(("a", "b", "step"), ROUNDED.values(), ids=ROUNDED)
def test_differences_that_are_equal_up_to_rounding_are_equal(a, b, step):
    """They support as much as the same numbers of eighths, which are exact."""
    steps = round(abs(float(a[0]) - float(b[0])) / step, 1)
    found = difference(by_seed(a), by_seed(b), resolution=step)
    eighths = by_seed(np.arange(len(a)) / 8 + steps / 8), by_seed(np.arange(len(a)) / 8)
    exact = difference(*eighths, resolution=1 / 8)
    assert found.p_value == exact.p_value
    assert found.pairs == len(a)
    assert difference(by_seed(a), by_seed(b)).p_value is None  # of unknown resolution


@pytest.mark.parametrize(
    "values",
    [
        [0.1 + 0.2, 0.3, 0.3],
        [0.7 - 0.6, 0.8 - 0.7, 0.9 - 0.8],
        [1 - 0.9, 0.1, 0.1, 0.1],
        [np.float32(0.1), 0.1, 0.1],
        [3 * 1.1, 3.3, 3.3],
        [1e6 / 3, np.float32(1e6 / 3), 1e6 / 3],
        [-0.3, -(0.1 + 0.2), -0.3],
        [sum([0.1] * 10), 1.0, 1.0, 1.0, 1.0],
    ],
    ids=str,
)
def test_values_that_are_equal_up_to_rounding_are_equal(values):
    middle = values[-1]
    assert interval(values) is None
    low, high = interval(values, resolution=1 / 256)
    assert (low, high) == pytest.approx(interval([middle] * len(values), resolution=1 / 256))
    same = difference(by_seed(values), by_seed([middle] * len(values)), resolution=1 / 256)
    assert (same.estimate, same.p_value, same.probability) == (0.0, 1.0, 0.5)
    unpaired = difference(by_seed(values), by_seed([middle + 9.0] * 3, first=50))
    assert unpaired.p_value is None


def test_a_small_difference_is_more_than_rounding():
    low, high = interval([0.5, 0.5, 0.50001])
    assert 0 < high - low < 1e-4
    found = difference(by_seed([0.5, 0.6, 0.7]), by_seed([0.49999, 0.59998, 0.68999]))
    assert found.p_value < 1
    assert found.probability == 6 / 9


def test_equal_groups_have_no_difference():
    found = difference(by_seed([0.5, 0.6, 0.7]), by_seed([0.5, 0.6, 0.7]), resolution=0.1)
    assert (found.estimate, found.p_value, found.probability) == (0.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([2.0, 3.0], [1.0, 1.5], 1.0),
        ([1.0, 3.0], [2.0, 2.0], 0.5),
        ([1.0, 1.0], [1.0, 1.0], 0.5),
        ([1.0, 2.0], [1.0, 3.0, 0.0], (0.5 + 0 + 1 + 1 + 0 + 1) / 6),
    ],
)
def test_the_probability_of_improvement_counts_ties_half(a, b, expected):
    assert probability_of_improvement(a, b) == pytest.approx(expected)
    assert probability_of_improvement(b, a) == pytest.approx(1 - expected)


def test_the_k_smallest_values_are_compared_with_their_share_of_the_rate():
    rate = ERROR_RATE
    assert supported([rate]) == [True]
    assert supported([1.01 * rate]) == [False]
    assert supported([rate, rate / 2, rate / 1.1]) == [True, True, True]  # the third allows all
    assert supported([0.9, rate / 2, rate / 3.1]) == [False, True, True]
    assert supported([0.9, rate / 1.4, rate / 2.9]) == [False, False, False]
    assert supported([rate / 3, None, 0.9]) == [True, False, False]
    assert supported([]) == []


@pytest.mark.parametrize(
    ("sizes", "common", "pairs"),
    [
        ((3, 10), 3, 3),  # all seeds of the smaller group
        ((6, 6), 3, 3),  # half of it
        ((7, 7), 3, 0),
        ((6, 40), 3, 3),  # half of the smaller one is enough, however large the other one is
        ((8, 40), 3, 0),
        ((2, 9), 2, 0),
    ],
)
def test_unequal_groups_are_paired_by_half_of_the_smaller(sizes, common, pairs):
    random = np.random.default_rng(0)
    a, b = (by_seed(random.normal(size=size)) for size in sizes)
    b = {seed if seed < common else seed + 100: value for seed, value in b.items()}
    for one, other in ((a, b), (b, a)):
        assert difference(one, other).pairs == pairs


def test_a_p_value_is_never_zero():
    """The largest of 100,000 draws bounds it: one over their number, and one more."""
    far = difference(by_seed([1e5, 1e5 + 1, 1e5 + 2]), by_seed([0, 1, 2.5]))
    assert far.p_value == 1 / (DRAWS + 1)
    assert supported([far.p_value]) == [True]
    assert supported([0.0]) == [True]


def test_groups_are_in_the_order_of_their_interquartile_means_and_every_two_are_compared_once():
    found = compare(runs(a=[0.1, 0.2, 0.3], b=[0.9, 0.8, 0.7], c=[0.5, 0.5, 0.6]))
    assert [result.group.label for result in found.results] == ["b", "c", "a"]
    assert found.results[0].values == {0: 0.9, 1: 0.8, 2: 0.7}
    assert found.results[0].mean == pytest.approx(0.8)
    assert found.results[0].iqm == pytest.approx(0.8)
    assert found.folder == Path("out")
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


@pytest.mark.parametrize(("seeds", "paired"), [(3, True), (8, True), (3, False), (5, False)])
def test_a_difference_that_the_seeds_show_is_found_in_most_sweeps(seeds, paired):
    random, deviations = np.random.default_rng(seeds), [0.05] if paired else [0.05, 0.1]
    shown = detectable_difference(deviations, [seeds] * len(deviations))
    found = []
    for _ in range(SWEEPS):
        a = dict(enumerate(random.normal(0.5 + shown, 0.05, seeds)))
        other = range(seeds) if paired else range(100, 100 + seeds)
        b = (
            dict.fromkeys(other, 0.5)
            if paired
            else dict(zip(other, random.normal(0.5, 0.1, seeds), strict=True))
        )
        found.append(difference(a, b).interval[0] > 0)
    assert np.mean(found) == pytest.approx(POWER, abs=0.03)


@pytest.mark.parametrize("largest", [0.6, 0.1, 0.02])
def test_the_seeds_that_would_show_a_difference_show_it_and_fewer_do_not(largest):
    a = {seed: 0.5 + x for seed, x in enumerate((largest, 0.0, largest / 2, -0.03, 0.03))}
    found = difference(a, dict.fromkeys(a, 0.5))
    deviation = np.std(list(a.values()), ddof=1)
    assert detectable_difference([deviation], [5]) == pytest.approx(found.detectable)
    assert detectable_difference([deviation], [found.seeds_needed]) <= 1.01 * found.estimate
    if found.seeds_needed > 3:
        assert (
            detectable_difference([deviation], [math.ceil(found.seeds_needed * 0.7)])
            > found.estimate
        )


def test_equal_groups_need_no_number_of_seeds():
    a = {0: 0.4, 1: 0.5, 2: 0.6}
    found = difference(a, {0: 0.5, 1: 0.5, 2: 0.5})
    assert (found.estimate, found.seeds_needed) == (0, None)
    assert found.detectable > 0


def test_groups_that_answered_the_same_questions_are_compared_over_them():
    random = np.random.default_rng(5)
    easy = random.random(60) < 0.5
    scores = {
        "a": easy | (random.random(60) < 0.3),
        "b": easy,
        "c": easy & (random.random(60) < 0.8),
    }
    found = compare([run_with(name, 0, list(map(float, x))) for name, x in scores.items()])
    assert [each.group.label for each in found.results] == ["a", "b", "c"]
    assert found.has_questions
    for pair in found.compared:
        gap = pair.questions
        assert gap.estimate == pytest.approx(pair.difference.estimate)
        assert gap.interval[0] <= gap.estimate <= gap.interval[1]
    assert found.questions_to_best(0) is None
    assert found.questions_to_best(2).estimate == -found.compared[1].questions.estimate


def test_other_questions_are_not_compared():
    one, other = run_with("a", 0, [1.0, 0.0] * 20), run_with("b", 0, [0.0] * 40, digest="other")
    (pair,) = compare([one, other]).compared
    assert pair.questions == "their 40 questions differ in ids, texts, answers or metadata"
    (pair,) = compare([one, run("b", 0, 0.0)]).compared  # an older run
    assert pair.questions is None
