"""The comparison in sentences, and its numbers as text."""

import math
from collections.abc import Sequence

from rl4p.tools.comparison.groups import changed
from rl4p.tools.comparison.measures import LAST, Metric
from rl4p.tools.comparison.statistics import (
    ERROR_RATE,
    FEWEST_SEEDS,
    LEVEL,
    POWER,
    Compared,
    Comparison,
    Interval,
    same,
)

# The figures are those of the head of statistics.py, which its tests measure.
WHY_NOT_95 = (
    f"Differences have intervals at {1 - ERROR_RATE:.0%} and groups at {LEVEL:.0%}: with few seeds "
    "a test at 5% calls equal algorithms different in up to 5.8% of sweeps, and one at "
    f"{ERROR_RATE:.0%} in less than 5%."
)
METHOD = (
    "Runs that differ only in the seed are one group, and each of them gives one value.",
    f"The interval of a group is Student's at {LEVEL:.0%}, with the interquartile mean of the "
    "seeds in place of their mean.",
    f"It is exact for normal values of any number of seeds from {FEWEST_SEEDS}. No method is exact "
    "for all values of so few seeds: this one contains the true value in 94 to 97% of sweeps for "
    "skewed, heavy-tailed and bimodal values, and in 92% for uniform ones.",
    "A bootstrap of three seeds contains it in 76%.",
    "Differences are between runs of the same seed, which see the same prompts in the same order.",
    "Differences are supported by the method of Benjamini and Hochberg at a false discovery rate "
    f"of {ERROR_RATE:.0%}: so many of them are expected to be wrong.",
    WHY_NOT_95,
    "Groups that answered the same questions also have a paired difference over them: the "
    f"interval at {LEVEL:.0%} is a bootstrap of the questions, with Student's distribution for the "
    "seeds.",
    "It says what other questions of the same kind would change, also of a single seed, and "
    "contains the true difference in 90 to 99% of simulated comparisons.",
    "The interval of a difference is for that comparison alone, and the best group was chosen by "
    "its value, so the differences to it are a little too large.",
)
MANY = 5  # groups in one sentence
SENTENCES = 4  # about the groups that are better than others


def sentences(comparison: Comparison) -> list[str]:
    """Returns what the runs show: the best group, the supported differences, what is missing."""
    results, metric = comparison.results, comparison.metric
    name = metric.name if metric.value == LAST else metric.counted
    best = results[0]
    equal = [each.group.name for each in results[1:] if same(each.iqm, best.iqm)]
    shown = number(best.iqm)
    if best.interval is not None:
        shown += f", {LEVEL:.0%} interval {span(best.interval)}"
    text = f"{best.group.name} has the highest {name}: {shown}, "
    if equal:
        text = f"{_listed([best.group.name, *equal])} have the highest {name}: {shown}, "
    if len(results) == 1:
        text = f"All runs have one configuration. Its {name} is {shown}, "
    said = [text + f"the interquartile mean of {_counted(len(best.values), 'seed', 'seeds')}."]
    if len(results) > 1:
        said += _of_differences(comparison)
    said += _of_questions(comparison)
    few = [each.group.name for each in results if len(each.values) < FEWEST_SEEDS]
    if few:
        whose = "Every group" if len(few) == len(results) > 1 else _listed(few)
        has = "has" if len(few) == 1 or len(few) == len(results) else "have"
        said.append(
            f"{whose} {has} fewer than {FEWEST_SEEDS} seeds, which give no interval and support no "
            "difference: run more, for example seed=0,1,2,3,4."
        )
    without = [each.group.name for each in results if each.interval is None]
    if constant := [group for group in without if group not in few]:
        said.append(f"All seeds of {_listed(constant)} have equal values, which give no interval.")
    resumed = [run for result in results for run in result.group.runs if run.changes]
    for run in resumed[:MANY]:
        changes = ", ".join(map(changed, run.changes))
        said.append(f"{run.name} was resumed with other values: {changes}.")
    if metric.others:
        said.append(f"Not every run has {_listed(metric.others)}, so the others are compared.")
    if comparison.left_out:
        said.append(f"{_counted(len(comparison.left_out), 'run is', 'runs are')} left out.")
    return said


def method(metric: Metric) -> list[str]:
    """Returns how a comparison is computed; docs/sweeps.md has the same sentences."""
    return [f"The value of a run is its {metric.counted}; higher counts as better.", *METHOD]


def _of_differences(comparison: Comparison) -> list[str]:
    names = [result.group.name for result in comparison.results]
    supported = [each for each in comparison.compared if each.supported]
    tested = [each for each in comparison.compared if each.difference.p_value is not None]
    said = []
    for better in sorted({each.better for each in supported})[:SENTENCES]:
        claims = [each for each in supported if each.better == better]
        claim = f"The seeds support that {names[better]} is better than "
        if len(claims) == 1:
            said.append(f"{claim}{names[claims[0].worse]}: {_measured(claims[0])}.")
        else:
            said.append(f"{claim}{_listed([names[each.worse] for each in claims])}.")
    if rest := len({each.better for each in supported}) - len(said):
        groups = _counted(rest, "further group is", "further groups are")
        said.append(f"{groups} better than another one; compare.json has all differences.")
    said = said or ["The seeds support no difference between the groups."]
    unsupported = [each for each in tested if not each.supported]
    of_best = [each for each in unsupported if 0 in (each.better, each.worse)]
    if len(of_best) == 1:
        one = of_best[0]
        pair = f"{names[one.better]} from {names[one.worse]}"
        said += [f"The seeds cannot distinguish {pair}: {_measured(one)}.", *_power([one])]
    elif of_best:
        others = [names[each.better + each.worse] for each in of_best]  # one of the two is 0
        said.append(f"The seeds cannot distinguish {names[0]} from {_listed(others)}.")
        said += _power(of_best)
    rate = f"at most {ERROR_RATE:.0%}"
    if len(tested) == 1:
        said.append(
            f"If both were equal, the seeds would support a difference in {rate} of such sweeps."
        )
    elif tested:
        said.append(
            f"Of the differences that are called supported in this way, {rate} are expected to be "
            f"wrong ({len(tested)} comparisons)."
        )
    if tested:
        said.append(WHY_NOT_95)
    if unsupported:
        said.append("A difference that is not supported may be real: more seeds can show it.")
    return said


def _of_questions(comparison: Comparison) -> list[str]:
    """Returns the differences to the best group over equal questions, or why there are none."""
    names = [result.group.name for result in comparison.results]
    said: list[str] = []
    unpaired: dict[str, list[str]] = {}
    for each in comparison.compared:
        if each.questions is None or 0 not in (each.better, each.worse):
            continue
        if isinstance(each.questions, str):
            unpaired.setdefault(each.questions, []).append(names[each.better + each.worse])
        elif len(said) < SENTENCES:
            paired = each.questions
            said.append(
                f"{names[each.better]} and {names[each.worse]} answered the same "
                f"{paired.questions:,} questions: the paired difference is "
                f"{number(paired.estimate, sign=True)}, {LEVEL:.0%} interval "
                f"{span(paired.interval, sign=True)}."
            )
    for reason, others in unpaired.items():
        said.append(
            f"The questions of {names[0]} are not paired with those of {_listed(others)}: {reason}."
        )
    return said


def _power(unsupported: Sequence[Compared]) -> list[str]:
    """Returns which differences the seeds of these comparisons detect, and how many are needed."""
    detectable = sorted(x for each in unsupported if (x := each.difference.detectable) is not None)
    if not detectable:
        return []
    sizes = " to ".join(dict.fromkeys(number(x) for x in (detectable[0], detectable[-1])))
    said = f"With so many seeds, {POWER:.0%} of sweeps detect a difference of {sizes}"
    needed = [each.difference.seeds_needed for each in unsupported]
    if len(needed) > 1 or needed[0] is None:
        return [f"{said}."]
    seeds = "more than 1,000" if needed[0] > 1000 else f"about {needed[0]}"
    return [f"{said}; {seeds} seeds of each would detect the one seen as often."]


def _measured(compared: Compared) -> str:
    difference = compared.difference
    how = (
        f"over {difference.pairs} seeds that both have"
        if difference.pairs
        else "over unpaired seeds"
    )
    shown = f"{number(difference.estimate, sign=True)} {how}"
    if difference.interval is not None:
        shown += f", {1 - ERROR_RATE:.0%} interval {span(difference.interval, sign=True)}"
    return f"{shown}, probability of improvement {difference.probability:.2f}"


def number(value: float, *, sign: bool = False) -> str:
    """Returns a value of the metric with three decimals, or three digits if it is large or tiny."""
    if not math.isfinite(value):
        return "\N{EM DASH}"
    value += 0.0  # makes a negative zero positive
    plus = "+" if sign else ""
    if value and not 5e-3 <= abs(value) < 1e3:
        return f"{value:{plus}.3g}"
    return f"{value:{plus}.3f}"


def span(interval: Interval | None, *, sign: bool = False) -> str:
    if interval is None:
        return "\N{EM DASH}"
    return f"[{number(interval[0], sign=sign)}, {number(interval[1], sign=sign)}]"


def share(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else "\N{EM DASH}"


def amount(value: float) -> str:
    """Returns a count in thousands, millions or billions: 1.24M."""
    if not math.isfinite(value):
        return "\N{EM DASH}"
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "\N{EM DASH}"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _listed(names: Sequence[str]) -> str:
    """Returns "a", "a and b", or "a, b and c"; of many names the first ones."""
    shown = list(names[:MANY])
    if len(names) > MANY:
        shown.append(f"{len(names) - MANY} others")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
