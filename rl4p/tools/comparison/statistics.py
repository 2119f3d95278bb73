"""The comparison itself: groups of runs, their statistics, and the differences between them.

Of a few seeds these are interquartile means, intervals and paired differences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.tools.comparison.groups import RunGroup, grouped
from rl4p.tools.comparison.measures import (
    AREA,
    LAST,
    LAST_5,
    Costs,
    Metric,
    QuestionDifference,
    Value,
    chosen_metric,
    mean_costs,
    question_difference,
)
from rl4p.tools.runs import LeftOut, Questions, Run

LEVEL = 0.95  # of the interval of a group
ERROR_RATE = 0.04  # the share of supported differences that may be wrong
FEWEST_SEEDS = 3  # two values have no useful spread: Student's factor is 12.7
ROUNDING = 2.0**-21  # of the largest value: four units in the last place of float32
DRAWS = 100_000  # the error of a 95 % quantile's level is 0.07 %
POWER = 0.8  # the share of sweeps that detect a detectable difference
SEEDS = (3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)  # further ones follow 1 / sqrt(seeds)

Interval = tuple[float, float]
Array = np.ndarray


def iqm(values: Sequence[float] | Array) -> float:
    """Returns the interquartile mean: the mean without the lowest and the highest quarter.

    A quarter is rounded down, as in rliable, so that fewer than four values lose none.
    """
    return float(_iqm(np.asarray(values, np.float64)))


def interval(
    values: Sequence[float] | Array,
    *,
    level: float = LEVEL,
    resolution: float = 0.0,
    bounds: Interval = (-np.inf, np.inf),
) -> Interval | None:
    """Returns the confidence interval of the interquartile mean, see the head of this module.

    Args:
      level: the share of sweeps whose interval contains the population's interquartile mean.
      resolution: the distance between two neighbouring values that the metric can have, such as
        1 / prompts for pass@1; 0 if unknown. It gives equal values a spread.
      bounds: the least and the largest possible value; the interval is cut there.

    Returns:
      None for fewer than `FEWEST_SEEDS` values, and for equal values of unknown resolution.
    """
    values = np.asarray(values, np.float64)
    deviation = _deviation(values, resolution, _rounding(values))
    if deviation is None:
        return None
    half = deviation * float(_ratios(len(values))[min(int(level * DRAWS), DRAWS - 1)])
    centre, (least, largest) = iqm(values), bounds
    return max(centre - half, least), min(centre + half, largest)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two groups, a - b."""

    # The interquartile mean of the paired differences, or the difference of the interquartile means
    # if the groups are not paired.
    estimate: float
    # Its interval at level 1 - `ERROR_RATE`, for this comparison alone; None if the seeds give none
    interval: Interval | None
    # The largest error rate at which the interval contains zero; None without an interval.
    p_value: float | None
    pairs: int  # the number of equal seeds that were compared; 0 if the groups are not paired
    probability: float  # the probability of improvement P(a > b), see `probability_of_improvement`
    detectable: float | None  # see `detectable_difference`; None without an interval
    # The number of seeds of each group that would detect a difference as large as `estimate`; None
    # without an interval, and for an estimate of zero.
    seeds_needed: int | None

    def reversed(self) -> "Difference":
        """Returns the difference b - a."""
        bounds = self.interval and (-self.interval[1], -self.interval[0])
        probability = 1 - self.probability
        return replace(self, estimate=-self.estimate, interval=bounds, probability=probability)


def difference(
    a: Mapping[int, float], b: Mapping[int, float], *, resolution: float = 0.0
) -> Difference:
    """Compares two groups, each with its values by seed.

    Seeds that only one of two paired groups has are left out of the difference.
    """
    common = common_seeds(a, b)
    all_a, all_b = np.array(list(a.values())), np.array(list(b.values()))
    rounding = _rounding(all_a, all_b)  # of values, and of their differences
    paired = bool(common)
    if paired:
        terms = [np.array([a[seed] - b[seed] for seed in common])]
        resolution *= np.sqrt(2)  # two rounded values
    else:
        terms = [all_a, all_b]
    estimate = iqm(terms[0]) - (0.0 if paired else iqm(terms[1]))
    if abs(estimate) <= rounding:
        estimate = 0.0
    spreads = [_deviation(values, resolution, rounding) for values in terms]
    deviations = [spread for spread in spreads if spread is not None]
    bounds = p_value = detectable = seeds_needed = None
    if len(deviations) == len(terms):
        detectable = detectable_difference(deviations, [len(values) for values in terms])
        seeds_needed = _seeds_needed(abs(estimate), deviations) if estimate else None
        # Sorted: element k, times the scale, is the half-width of the interval at level k / DRAWS.
        scale, halves = deviations[0], _ratios(len(terms[0]))
        if not paired:
            halves = np.hypot(scale * halves, deviations[1] * _ratios(len(terms[1])))
            scale = 1.0
        half = scale * float(halves[min(int((1 - ERROR_RATE) * DRAWS), DRAWS - 1)])
        bounds = estimate - half, estimate + half
        wider = len(halves) - int(np.searchsorted(halves, abs(estimate) / scale))
        p_value = (wider + 1) / (len(halves) + 1)
    return Difference(
        estimate=estimate,
        interval=bounds,
        p_value=p_value,
        pairs=len(common),
        probability=probability_of_improvement(all_a, all_b),
        detectable=detectable,
        seeds_needed=seeds_needed,
    )


def common_seeds(a: Mapping[int, Any], b: Mapping[int, Any]) -> list[int]:
    """Returns the seeds by which two groups are paired, in order; none if they are not paired.

    Groups are paired if they share at least `FEWEST_SEEDS` seeds and half of the smaller group.
    """
    common = sorted(a.keys() & b.keys())
    paired = len(common) >= FEWEST_SEEDS and 2 * len(common) >= min(len(a), len(b))
    return common if paired else []


def detectable_difference(deviations: Sequence[float], seeds: Sequence[int]) -> float:
    """Returns the true difference that so many seeds detect in `POWER` of sweeps.

    They detect it if its interval is above zero. For normal values with deviation s and factor c of
    the interval, the difference is s times the quantile, at `POWER`, of c std(z) - iqm(z). Those of
    two groups add like the halves of their interval, which is 1 % too large for three seeds.
    Further groups in the comparison are not considered.

    Args:
      deviations: s, that of the paired differences, or those of both groups.
      seeds: the number of values of each.
    """
    return math.hypot(*(s * _detectable(n) for s, n in zip(deviations, seeds, strict=True)))


@cache
def _detectable(n: int) -> float:
    centre, spread = _normal(n)
    factor = _ratios(n)[int((1 - ERROR_RATE) * DRAWS)]
    return float(np.quantile(factor * spread - centre, POWER))


def _seeds_needed(estimate: float, deviations: Sequence[float]) -> int:
    detectable = math.inf
    for n in SEEDS:
        detectable = detectable_difference(deviations, [n] * len(deviations))
        if detectable <= estimate:
            return n
    return math.ceil(SEEDS[-1] * (detectable / estimate) ** 2)


def probability_of_improvement(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """Returns the share of all pairs of a run of each group in which a is larger; ties are half."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    difference = a[:, None] - b
    sign = np.where(np.abs(difference) <= _rounding(a, b), 0.0, np.sign(difference))
    return float((1 + sign).mean() / 2)


def same(a: float, b: float) -> bool:
    """Returns whether two numbers differ by rounding only."""
    return abs(a - b) <= _rounding(np.array([a, b]))


def supported(p_values: Sequence[float | None], *, error_rate: float = ERROR_RATE) -> list[bool]:
    """Returns which differences are supported, by the method of Benjamini and Hochberg."""
    known = sorted(p for p in p_values if p is not None)
    largest = max(
        (p for rank, p in enumerate(known, 1) if p <= error_rate * rank / len(known)), default=-1.0
    )
    return [p is not None and p <= largest for p in p_values]


def _rounding(*values: Array) -> float:
    """Returns the largest difference that rounding alone may make between some of the values."""
    return ROUNDING * max((float(np.abs(each).max()) for each in values if each.size), default=0.0)


def _deviation(values: Array, resolution: float, rounding: float) -> float | None:
    """Returns the standard deviation; of values equal up to `rounding` that of their resolution."""
    if len(values) < FEWEST_SEEDS:
        return None
    if np.ptp(values) <= rounding:
        return resolution / np.sqrt(12) or None
    return float(values.std(ddof=1))


@cache
def _ratios(n: int) -> Array:
    """Returns `DRAWS` sorted values of |iqm(z)| / std(z), each for n normal values z."""
    centre, spread = _normal(n)
    ratios = np.sort(np.abs(centre) / spread)
    ratios.flags.writeable = False
    return ratios


@cache
def _normal(n: int) -> tuple[Array, Array]:
    """Returns iqm(z) and std(z) of `DRAWS` times n normal values z."""
    z = np.random.default_rng(n).standard_normal((DRAWS, n))
    return _iqm(z), z.std(axis=-1, ddof=1)


def _iqm(values: Array) -> Array:
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


SHARE = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A group with its statistics."""

    group: RunGroup
    values: dict[int, float]  # the number of the metric of each run, by seed
    mean: float
    iqm: float
    interval: Interval | None  # the confidence interval of `iqm`; None if the seeds give none
    # area, last_5: the interquartile means of these other numbers; nan if a run has none
    area: float
    last_5: float
    costs: Costs  # the mean costs of a run


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A difference between two groups."""

    # better, worse: indices into `Comparison.results`
    better: int
    worse: int
    difference: Difference  # better - worse
    supported: bool  # whether the seeds support the difference, considering all comparisons
    # The difference over the questions that both groups answered, better - worse; a clause that
    # says why they are not paired; or None if a run has not recorded its questions.
    questions: QuestionDifference | str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is known of some runs."""

    metric: Metric
    results: tuple[Result, ...]  # the groups, the one with the highest interquartile mean first
    compared: tuple[Compared, ...]  # every pair of groups
    left_out: tuple[LeftOut, ...]  # the runs that are not compared
    folder: Path  # the folder of index.html and compare.json

    def to_best(self, index: int) -> tuple[Difference, bool] | None:
        """Returns the difference of a group to the first one, and whether it is supported.

        It is None for the first group. A group may be better than the first one for equal seeds.
        """
        for each in self.compared:
            if {each.better, each.worse} == {0, index}:
                difference = each.difference
                return difference if each.better == index else difference.reversed(), each.supported
        return None

    def questions_to_best(self, index: int) -> QuestionDifference | None:
        """Returns the difference of a group to the first one over questions, if they are paired."""
        for each in self.compared:
            if {each.better, each.worse} == {0, index}:
                paired = each.questions
                if isinstance(paired, QuestionDifference):
                    return paired if each.better == index else paired.reversed()
        return None

    @property
    def has_costs(self) -> bool:
        """Returns whether these are training runs, and not evaluations."""
        return not any(run.evaluation for each in self.results for run in each.group.runs)

    @property
    def has_questions(self) -> bool:
        """Returns whether the questions of any two groups are paired."""
        return any(isinstance(each.questions, QuestionDifference) for each in self.compared)


def analysed(
    runs: Sequence[Run],
    left_out: Sequence[LeftOut],
    folder: Path,
    metric: str | None = None,
    value: Value = LAST,
) -> Comparison:
    """Groups runs and compares each group with each other one.

    Args:
      metric: the name of the metric; higher values count as better. None is pass@1.
    """
    if not runs:
        named = "; ".join(f"{run.name}: {run.reason}" for run in left_out[:5])
        raise InputError(f"None of the {len(left_out)} runs has finished. {named}.")
    chosen = chosen_metric(runs, metric, value)
    measured = [run for run in runs if math.isfinite(chosen.of(run))]
    if not measured:
        raise InputError(
            f"The {chosen.counted} is not a finite number in any of the {len(runs)} runs."
        )
    without = []
    for run in runs:
        if run not in measured:
            last = chosen.of(run)
            missing = "missing" if math.isnan(last) else str(last)
            without.append(LeftOut(name=run.name, reason=f"its {chosen.counted} is {missing}"))
    groups, repeated = grouped(measured)
    resolution = chosen.resolution(measured)
    results = sorted(
        (_result(group, chosen, resolution) for group in groups), key=lambda result: -result.iqm
    )
    pairs = []
    for better, worse in combinations(range(len(results)), 2):
        gap = difference(results[better].values, results[worse].values, resolution=resolution)
        if gap.estimate < 0:  # paired and unpaired differences may differ in sign
            better, worse, gap = worse, better, gap.reversed()
        pairs.append(
            Compared(
                better=better,
                worse=worse,
                difference=gap,
                supported=False,
                questions=_paired_questions(results[better], results[worse], chosen),
            )
        )
    answers = supported([pair.difference.p_value for pair in pairs])
    return Comparison(
        metric=chosen,
        results=tuple(results),
        compared=tuple(
            replace(pair, supported=answer) for pair, answer in zip(pairs, answers, strict=True)
        ),
        left_out=(*left_out, *without, *repeated),
        folder=folder,
    )


def _paired_questions(
    better: Result, worse: Result, metric: Metric
) -> QuestionDifference | str | None:
    by_seed: list[dict[int, tuple[Questions, ...]]] = []
    for result in (better, worse):
        questions = {run.seed: metric.questions(run) for run in result.group.runs}
        by_seed.append({seed: each for seed, each in questions.items() if each is not None})
        if len(by_seed[-1]) < len(questions):
            return None
    return question_difference(*by_seed, common=common_seeds(*by_seed), level=LEVEL)


def _result(group: RunGroup, metric: Metric, resolution: float) -> Result:
    values = {run.seed: metric.of(run) for run in group.runs}
    numbers = np.array(list(values.values()))
    within = metric.is_share and 0 <= numbers.min() <= numbers.max() <= 1
    bounds = SHARE if within else (-math.inf, math.inf)
    others = []
    for value in (AREA, LAST_5):
        of_runs = [metric.of(run, value) for run in group.runs]
        others.append(iqm(of_runs) if all(map(math.isfinite, of_runs)) else math.nan)
    return Result(
        group=group,
        values=values,
        mean=float(numbers.mean()),
        iqm=iqm(numbers),
        interval=interval(numbers, resolution=resolution, bounds=bounds),
        area=others[0],
        last_5=others[1],
        costs=mean_costs(group.runs),
    )
