"""The statistics of a few seeds: interquartile means, intervals, paired differences.

The number of seeds n is small, 3 to 10. Two facts decide the methods.

1. A percentile bootstrap of n values, as in rliable (Agarwal et al. 2021, arXiv:2108.13264), is too
   narrow for such n: its 95 % interval covers the truth in 76 % of sweeps of three seeds, and in
   90 % of five. (rliable gets more values by pooling tasks. Seeds are the only independent values
   of a sweep.) The studentized bootstrap fails too: many resamples of so few values have no spread.
2. The exact permutation test of pairs cannot decide: with five pairs its least p-value is 1/16.

The interval is therefore Student's t interval with the interquartile mean in place of the mean:

    iqm(x) +- c_n std(x),    c_n = the quantile of |iqm(z)| / std(z) for n normal values z

The ratio does not depend on the location and the scale of z, so the interval is exact for normal
values, and equal to Student's for n = 3, where nothing is trimmed. `tests/tools/comparison`
measures its coverage of the population's interquartile mean: 94 to 97 % for skewed, heavy-tailed,
binomial and bimodal values (a fifth of the seeds fails to learn), 92 % for uniform values.

Differences are taken between runs of equal seeds, which share their prompts and the randomness of
their first step, so a part of the noise cancels. Without enough equal seeds, the interval of a
difference combines the half-widths h of both groups, sqrt(h_a^2 + h_b^2) (MOVER: Zou and Donner
2008, doi:10.1002/sim.3095), which is conservative for so few values.

The level of a difference is `ERROR_RATE` = 4 %, not 5 %. Values with light tails call identical
algorithms different more often than normal ones: a test at 5 % does so in up to 5.8 % of sweeps,
one at 4 % in less than 5 %.

Several groups are compared by the method of Benjamini and Hochberg (1995): of the differences that
are called supported, at most 4 % are expected to be wrong. Two equal algorithms are then called
different in at most 4 % of sweeps, whatever the other groups are; and if all groups are equal, any
difference is supported in at most 4 %. A method that keeps the second rate even where other groups
differ (Holm's) has no power with three seeds: it does not tell 0.93 from 0.69 in a sweep of ten
algorithms with deviations of 0.02.

Values that differ by rounding only count as equal (`ROUNDING`): 0.8 - 0.7 and 0.9 - 0.8 are not the
same number, and the deviation 2e-17 of such differences says nothing about the seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

LEVEL = 0.95  # of the interval of a group
ERROR_RATE = 0.04  # the share of supported differences that may be wrong
FEWEST_SEEDS = 3  # two values have no useful spread: Student's factor is 12.7
ROUNDING = 2.0**-21  # of the largest value: four units in the last place of float32
DRAWS = 100_000  # the error of a 95 % quantile's level is 0.07 %

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
      values: one value for each seed.
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
    half = deviation * _at(_ratios(len(values)), level)
    centre, (least, largest) = iqm(values), bounds
    return max(centre - half, least), min(centre + half, largest)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between two groups, a - b.

    Attributes:
      estimate: the interquartile mean of the paired differences, or the difference of the
        interquartile means if the groups are not paired.
      interval: its interval at level 1 - `ERROR_RATE`, for this comparison alone; None if the
        seeds give none.
      p_value: the largest error rate at which the interval contains zero; None without an interval.
      pairs: the number of equal seeds that were compared; 0 if the groups are not paired.
      probability: the probability of improvement P(a > b), see `probability_of_improvement`.
    """

    estimate: float
    interval: Interval | None
    p_value: float | None
    pairs: int
    probability: float

    def reversed(self) -> "Difference":
        """Returns the difference b - a."""
        bounds = self.interval and (-self.interval[1], -self.interval[0])
        probability = 1 - self.probability
        return replace(self, estimate=-self.estimate, interval=bounds, probability=probability)


def difference(
    a: Mapping[int, float], b: Mapping[int, float], *, resolution: float = 0.0
) -> Difference:
    """Compares two groups, each with its values by seed.

    Groups are paired if they share at least `FEWEST_SEEDS` seeds and half of the smaller group.
    Seeds that only one group has are then left out of the difference.
    """
    common = sorted(a.keys() & b.keys())
    all_a, all_b = np.array(list(a.values())), np.array(list(b.values()))
    rounding = _rounding(all_a, all_b)  # of values, and of their differences
    paired = len(common) >= FEWEST_SEEDS and 2 * len(common) >= min(len(a), len(b))
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
    bounds = p_value = None
    if len(deviations) == len(terms):
        # Sorted: element k, times the scale, is the half-width of the interval at level k / DRAWS.
        scale, halves = deviations[0], _ratios(len(terms[0]))
        if not paired:
            halves = np.hypot(scale * halves, deviations[1] * _ratios(len(terms[1])))
            scale = 1.0
        half = scale * _at(halves, 1 - ERROR_RATE)
        bounds = estimate - half, estimate + half
        wider = len(halves) - int(np.searchsorted(halves, abs(estimate) / scale))
        p_value = (wider + 1) / (len(halves) + 1)
    return Difference(
        estimate=estimate,
        interval=bounds,
        p_value=p_value,
        pairs=len(common) if paired else 0,
        probability=probability_of_improvement(all_a, all_b),
    )


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
    """Returns which differences are supported, by the method of Benjamini and Hochberg.

    A difference without a p-value is not supported. It counts as no comparison.
    """
    known = sorted(p for p in p_values if p is not None)
    largest = max(
        (p for rank, p in enumerate(known, 1) if p <= error_rate * rank / len(known)), default=-1.0
    )
    return [p is not None and p <= largest for p in p_values]


def _rounding(*values: Array) -> float:
    """Returns the largest difference that rounding alone may make between some of the values."""
    return ROUNDING * max((float(np.abs(each).max()) for each in values if each.size), default=0.0)


def _deviation(values: Array, resolution: float, rounding: float) -> float | None:
    """Returns the standard deviation; equal values have that of their resolution, or None.

    Args:
      rounding: the largest range of values that count as equal.
    """
    if len(values) < FEWEST_SEEDS:
        return None
    if np.ptp(values) <= rounding:
        return resolution / np.sqrt(12) or None
    return float(values.std(ddof=1))


def _at(ordered: Array, level: float) -> float:
    """Returns a quantile of sorted values."""
    return float(ordered[min(int(level * len(ordered)), len(ordered) - 1)])


@cache
def _ratios(n: int) -> Array:
    """Returns `DRAWS` sorted values of |iqm(z)| / std(z), each for n normal values z."""
    z = np.random.default_rng(n).standard_normal((DRAWS, n))
    ratios = np.sort(np.abs(_iqm(z)) / z.std(axis=-1, ddof=1))
    ratios.flags.writeable = False
    return ratios


def _iqm(values: Array) -> Array:
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)
