"""What is measured of runs: the value of the metric, the questions behind it, costs and curves.

Costs are sums over the steps of the record: `time/step` has no evaluations and no start. The first
run on a machine compiles for all later ones, so compilation is a cost of its own. A metric that a
run does not record is nan.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rl4p.base.errors import InputError
from rl4p.runs.pictures import in_words
from rl4p.tools.runs import PASS_AT_1, Questions, Run, refuse_unrecorded

ENTROPY, GAP = "update/entropy", "rollout/logprob_gap_max"
LENGTH, TRUNCATED, EFFECTIVE = "rollout/response_tokens", "rollout/truncated", "update/ess"
REWARD, SECONDS, SPEED = "reward/mean", "time/step", "rollout/tokens_per_second"
COMPILE, EVALUATION_COMPILE = "time/compile", "time/evaluation_compile"
CURVES = (REWARD, LENGTH, ENTROPY, GAP, TRUNCATED)  # below the curve of the metric
RECORDED = (*CURVES, EFFECTIVE, SECONDS, COMPILE, EVALUATION_COMPILE, SPEED, "time/rollout")


@dataclass(frozen=True)
class Value:
    """The number that stands for the curve of a run.

    * ``last`` is the last value.
    * ``last_K`` is the mean of the last K values. Fewer values have none.
    * ``area`` is the area under the curve, in trapezoids, divided by the steps from the first value
      to the last: the mean height of the curve.
    """

    name: str = "last"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"last|area|last_[1-9]\d*", self.name):
            raise InputError(f"value={self.name} is none: write value=last, last_5 or area.")

    def of(self, series: Mapping[int, float]) -> float:
        """Returns the number of a curve, of which `series` has the value at each step."""
        steps, values = np.array(list(series), float), np.array(list(series.values()), float)
        if self.name != "area":
            count = int(self.name.partition("_")[2] or 1)
            return float(values[-count:].mean()) if len(values) >= count else math.nan
        if len(values) < 2:
            return float(values[-1]) if len(values) else math.nan
        return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))

    def words(self, metric: str) -> str:
        """Returns the number of a metric in words."""
        if self.name == "area":
            return f"area under the curve of {metric}"
        count = self.name.partition("_")[2]
        return f"mean of the last {count} values of {metric}" if count else f"last {metric}"


LAST, LAST_5, AREA = Value("last"), Value("last_5"), Value("area")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The metric that is compared: one metric, or the mean of several tasks."""

    names: tuple[str, ...]  # the metrics
    # The metrics of tasks that only some runs have, which are not compared.
    others: tuple[str, ...] = ()
    value: Value = LAST  # the number of a run that counts

    @property
    def name(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"mean of {', '.join(self.names)}"

    @property
    def counted(self) -> str:
        """The name with the number that counts: "last reward/mean"."""
        return self.value.words(self.name)

    @property
    def words(self) -> str:
        """The metric in words, for pictures."""
        return in_words(*self.names)

    @property
    def is_share(self) -> bool:
        """Returns whether the metric is a share of the prompts, between 0 and 1."""
        return all("/pass_at_" in name for name in self.names)

    def series(self, run: Run) -> dict[int, float]:
        """Returns the value at each step that recorded all of `names`."""
        return {
            int(row["step"]): sum(row[name] for name in self.names) / len(self.names)
            for row in run.rows
            if all(name in row for name in self.names)
        }

    def of(self, run: Run, value: Value | None = None) -> float:
        """Returns the number of a run that counts; nan if the run never recorded the metric."""
        return (value or self.value).of(self.series(run))

    def questions(self, run: Run) -> tuple[Questions, ...] | None:
        """Returns the questions behind the number of a run, for each of `names`.

        Returns None if the run did not record them, or if the number is of an earlier evaluation.
        """
        questions = [run.questions.get(name) for name in self.names]
        known = tuple(each for each in questions if each is not None and each.scores)
        if self.value != LAST or len(known) < len(self.names):
            return None
        mean = sum(sum(each.scores) / len(each.scores) for each in known) / len(known)
        return known if math.isclose(mean, self.of(run), rel_tol=1e-6, abs_tol=1e-9) else None

    def resolution(self, runs: Sequence[Run]) -> float:
        """Returns the distance of two neighbouring values of pass@1, which counts prompts."""
        if not all(name.endswith(PASS_AT_1) for name in self.names):
            return 0.0
        names = [name.removesuffix(PASS_AT_1) + "/prompts" for name in self.names]
        prompts = [row[name] for run in runs for row in run.rows for name in names if name in row]
        return 1 / (max(prompts) * len(names)) if prompts and max(prompts) > 0 else 0.0


def chosen_metric(runs: Sequence[Run], name: str | None, value: Value = LAST) -> Metric:
    """Returns the metric with this name; None is pass@1 of the tasks that all runs have.

    A run without any task does not count: the comparison leaves it out.
    """
    recorded = [{key for row in run.rows for key in row} - {"step"} for run in runs]
    everything = sorted(set().union(*recorded))
    if name is not None:
        refuse_unrecorded(name, everything)
        return Metric(names=(name,), value=value)
    tasks = [
        {key for key in keys if key.startswith("eval/") and key.endswith(PASS_AT_1)}
        for keys in recorded
    ]
    tasks = [each for each in tasks if each]
    if not tasks:
        names = ", ".join(everything[:40]) or "no metrics"
        raise InputError(f"The runs have no eval/*/pass_at_1: set metric= to one of {names}.")
    common, all_tasks = set.intersection(*tasks), set.union(*tasks)
    if not common:
        counts = [f"{key} in {sum(key in each for each in tasks)}" for key in sorted(all_tasks)]
        raise InputError(
            f"The {len(tasks)} runs have no common task ({', '.join(counts)}): choose metric=NAME,"
            f" such as metric={REWARD}."
        )
    return Metric(
        names=tuple(sorted(common)), others=tuple(sorted(all_tasks - common)), value=value
    )


FEWEST_QUESTIONS = 30  # the bootstrap of fewer is too narrow
RESAMPLES = 10_000  # the error of a 2.5 % quantile's level is 0.16 %
MOST_DRAWN = 4_000_000  # questions at a time, to bound the memory
ROUNDING = 1e-9  # of differences between scores from 0 to 1


@dataclass(frozen=True, kw_only=True)
class QuestionDifference:
    """The difference between two groups over the questions that both answered, a - b."""

    estimate: float  # the difference of the means over runs and questions
    interval: tuple[float, float]  # the confidence interval of `estimate`
    questions: int

    def reversed(self) -> "QuestionDifference":
        """Returns the difference b - a."""
        bounds = -self.interval[1], -self.interval[0]
        return replace(self, estimate=-self.estimate, interval=bounds)


def question_difference(
    a: Mapping[int, Sequence[Questions]],
    b: Mapping[int, Sequence[Questions]],
    *,
    common: Sequence[int] = (),
    level: float = 0.95,
) -> QuestionDifference | str:
    """Compares two groups, each with its questions by seed, on equal questions.

    s_i(q) is the score of run i on question q. With several tasks, the difference is the mean of
    the differences of the tasks t:

        d = mean_t mean_(q in t) g(q),   g(q) = mean_(i in a) s_i(q) - mean_(j in b) s_j(q)

    The interval has the quantiles of d* over `RESAMPLES` draws with a fixed seed:

        d* = mean_t mean_(q in draw of t) g(q) + sum_groups u sqrt(max(0, S^2 - E) / n)

    A draw takes as many questions of a task as it has, with replacement (bootstrap), and the same
    ones for both groups. Their common difficulty cancels, as in the paired standard errors of
    2411.00640. The sum is the part of the seeds, of groups of n > 1 runs: u is a draw of Student's
    distribution with n - 1 degrees of freedom, since a bootstrap of a few runs is too narrow. S^2
    is the variance between the mean scores of the runs. E is the part of S^2 that is noise of the
    questions, which g has already: the variance of s_i(q) without the means of runs and of
    questions, divided by the number of questions. Groups that are paired by seeds have one such
    term, of the differences of their runs.

    Args:
      a, b: for each run the questions of each task.
      common: the seeds by which the groups are paired; none if they are not.
      level: the level of the interval.

    Returns:
      A clause that says why the questions are not paired, or the difference.
    """
    runs = [*(a[seed] for seed in common or a), *(b[seed] for seed in common or b)]
    of_a = len(common or a)  # the first of them; the others are of b
    tasks = [*zip(*runs, strict=True)]  # for each task the questions of each run
    for same in tasks:
        if len({each.digest for each in same}) > 1:
            counts = sorted({len(each.scores) for each in same})
            if len(counts) > 1:
                return f"they answered {counts[0]} and {counts[-1]} questions"
            return f"their {counts[0]} questions differ in ids, texts, answers or metadata"
    scores = [np.array([each.scores for each in same], np.float64) for same in tasks]  # [run, q]
    count = sum(each.shape[1] for each in scores)
    if count < FEWEST_QUESTIONS:
        return f"{count} questions are too few, and {FEWEST_QUESTIONS} are enough"
    gaps = [each[:of_a].mean(axis=0) - each[of_a:].mean(axis=0) for each in scores]
    if all(np.ptp(gap) <= ROUNDING for gap in gaps):
        return "they differ by the same on each question, which gives no interval"
    random, draws = np.random.default_rng(0), np.zeros(RESAMPLES)
    for gap in gaps:
        for part in np.array_split(draws, -(-RESAMPLES * len(gap) // MOST_DRAWN)):
            drawn = random.integers(len(gap), size=(len(part), len(gap)))
            part += gap[drawn].mean(axis=1) / len(gaps)
    parts = [[x[:of_a] - x[of_a:] for x in scores]]
    if not common:
        parts = [[x[:of_a] for x in scores], [x[of_a:] for x in scores]]
    for part in parts:
        draws += _deviation_of_runs(part) * random.standard_t(max(1, len(part[0]) - 1), RESAMPLES)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return QuestionDifference(
        estimate=float(np.mean([gap.mean() for gap in gaps])),
        interval=(float(low), float(high)),
        questions=count,
    )


def _deviation_of_runs(scores: Sequence[np.ndarray]) -> float:
    """Returns sqrt(max(0, S^2 - E) / n) of n runs; the scores of each task are [run, question]."""
    n = len(scores[0])
    if n == 1:
        return 0.0
    means = np.mean([each.mean(axis=1) for each in scores], axis=0)
    by_questions = 0.0
    for each in scores:
        rest = each - each.mean(axis=1, keepdims=True) - each.mean(axis=0) + each.mean()
        freedom = (n - 1) * max(1, each.shape[1] - 1)
        by_questions += np.sum(rest**2) / freedom / each.shape[1] / len(scores) ** 2
    return math.sqrt(max(0.0, float(np.var(means, ddof=1) - by_questions)) / n)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs and the health of a run, or their means over the runs of a group."""

    seconds: float  # the time of all steps, without compilation
    compile_seconds: float  # the time of compilation in all steps and evaluations
    tokens: float  # the sampled tokens
    # device_hours, compile_device_hours: these times multiplied by the number of devices
    device_hours: float
    compile_device_hours: float
    truncated: float  # the mean share of responses that reached the limit
    effective: float  # the mean effective sample size, as a share of the samples; 1 is on-policy


def costs(run: Run) -> Costs:
    """Returns the costs of a run; those of an evaluation are not known."""
    if run.evaluation:
        return Costs(**{each.name: math.nan for each in fields(Costs)})
    steps = [row for row in run.rows if row["step"] > 0]
    seconds = float(np.sum(seconds_of_steps(run)))
    compiled = sum(row.get(COMPILE, 0.0) + row.get(EVALUATION_COMPILE, 0.0) for row in run.rows)
    return Costs(
        seconds=seconds,
        compile_seconds=compiled,
        tokens=float(np.sum(tokens(run))),
        device_hours=seconds * run.devices / 3600,
        compile_device_hours=compiled * run.devices / 3600,
        truncated=_mean([row[TRUNCATED] for row in steps if TRUNCATED in row]),
        effective=_mean([row[EFFECTIVE] for row in steps if EFFECTIVE in row]),
    )


def mean_costs(runs: Sequence[Run]) -> Costs:
    each = [vars(costs(run)) for run in runs]
    return Costs(**{name: _mean([values[name] for values in each]) for name in each[0]})


def seconds_of_steps(run: Run) -> list[float]:
    """Returns the time of each step without compilation."""
    return [row.get(SECONDS, 0.0) - row.get(COMPILE, 0.0) for row in run.rows if row["step"] > 0]


def tokens(run: Run) -> np.ndarray:
    """Returns the sampled tokens of each step.

    The measured speed counts the sequences of the step; a rollout without one samples
    `prompts_per_step` times `group_size`.
    """
    sequences = run.config.get("prompts_per_step", 0) * run.config.get("group_size", 0)
    return np.array(
        [
            row[SPEED] * row["time/rollout"]
            if SPEED in row and "time/rollout" in row
            else row.get(LENGTH, 0.0) * sequences
            for row in run.rows
            if row["step"] > 0
        ]
    )


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
