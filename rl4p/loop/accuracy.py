"""Accuracies of graded responses: pass@1, avg@n, pass@k and best-of-n, with 95 % intervals.

The samples of one prompt are not independent, so the prompts are the unit of every interval. A
statistic is a mean over prompts, p = sum_i x_i / P, of values x_i in [0, 1]. Its interval is
Wilson's score interval for n_eff independent trials:

    n_eff = P p (1 - p) / var(x),   var(x) = sum_i (x_i - p)^2 / P

p (1 - p) / n_eff is then the variance of the mean over P prompts. If every x_i is 0 or 1, as with
one response to each prompt, then n_eff = P and this is Wilson's interval of a proportion. Several
samples of a prompt reduce var(x), so that n_eff lies between P (the samples of a prompt are equal)
and the number of samples (they are independent). Unlike p +- 1.96 standard errors, the interval
stays in [0, 1] and has a width if all prompts are right or all are wrong; n_eff is then P.

Fewer than 30 prompts do not tell their own variance: Wilson's interval then covers the truth in 88
to 96 % of evaluations, and with samples of prompts of which few are easy in 75 % only. With so few
prompts the interval is Student's t interval over P + 4 prompts, of which two more are right and two
more are wrong (Agresti and Coull 1998, doi:10.1080/00031305.1998.10480550, for the mean of P values
in place of a proportion). It covers the truth in 95 to 100 % of evaluations: `tests/loop` measures
it for 2 to 29 prompts.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

FEW = 30  # prompts; fewer have the wider interval
Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
METHOD = (
    "95 %, over prompts: Wilson's score interval, for samples with the effective number of trials "
    f"that the variance between prompts gives; for fewer than {FEW} prompts Student's t interval, "
    "with two more prompts that are right and two that are wrong"
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An accuracy with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


class SampleChoice(NamedTuple):
    """One of the samples of a prompt, among which a term chooses.

    Attributes:
      grade: of the term; None if it failed or does not apply.
      answer: equal for samples with the same final answer.
    """

    grade: float | None
    answer: Any
    correct: bool


@dataclass(frozen=True, kw_only=True)
class Score:
    """The accuracies of one task."""

    # prompts, samples: the numbers of prompts, and of samples of each
    prompts: int
    samples: int
    invalid: int  # the number of responses that could not be graded; they count as wrong
    pass_at_1: Estimate  # of the greedy responses
    average: Estimate | None  # avg@samples, the mean accuracy of the samples; None without samples
    pass_at_k: dict[int, Estimate]  # pass@k for some k from 2 to `samples`
    # Of the answer that a term chooses among the samples (`best_of`, `majority_of`); None without.
    best: Estimate | None = None
    majority: Estimate | None = None

    def chosen(self) -> dict[str, Estimate]:
        """Returns the accuracies of chosen answers by name, if a term chooses."""
        both = {"best_of": self.best, "majority_of": self.majority}
        return {name: each for name, each in both.items() if each is not None}

    def metrics(self) -> dict[str, float]:
        """Returns the values by the names of metrics; `invalid` only if there are any."""
        metrics = {"pass_at_1": self.pass_at_1.value, "prompts": float(self.prompts)}
        if self.average is not None:
            metrics[f"avg_at_{self.samples}"] = self.average.value
        metrics |= {f"pass_at_{k}": each.value for k, each in self.pass_at_k.items()}
        metrics |= {f"{name}_{self.samples}": each.value for name, each in self.chosen().items()}
        return metrics | ({"invalid": float(self.invalid)} if self.invalid else {})


@dataclass(eq=False)
class Tally:
    """Counts of right and of invalid responses by task and prompt."""

    greedy: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    sampled: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    invalid: Counter[str] = field(default_factory=Counter)
    choices: dict[str, dict[str, list[SampleChoice]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(
        self,
        task: str,
        prompt: str,
        *,
        greedy: bool,
        correct: bool,
        valid: bool,
        choice: SampleChoice | None = None,
    ) -> None:
        """Counts one response to the prompt with an id, which its samples share."""
        if greedy:
            self.greedy[task].append(correct)
        else:
            self.sampled[task][prompt] += correct
            if choice is not None:
                self.choices[task][prompt].append(choice)
        self.invalid[task] += not valid

    def by_question(self, samples: int) -> dict[str, dict[str, list[float]]]:
        """Returns the scores of each question by task and by the name of their mean.

        The questions are in the order in which they were counted.
        """
        scores = {}
        for task, right in self.greedy.items():
            scores[task] = {"pass_at_1": [float(each) for each in right]}
            if samples:
                shares = [count / samples for count in self.sampled[task].values()]
                scores[task][f"avg_at_{samples}"] = shares
        return scores

    def scores(self, samples: int, pass_at_k: Sequence[int]) -> dict[str, Score]:
        """Returns the scores by task, in the order in which the tasks were first counted.

        Args:
          pass_at_k: the values of k, at most `samples`.
        """
        scores = {}
        for task, right in self.greedy.items():
            P, right_P = len(right), np.array(list(self.sampled[task].values()))
            among = list(self.choices[task].values())
            scores[task] = Score(
                prompts=P,
                samples=samples,
                invalid=self.invalid[task],
                pass_at_1=estimate(np.array(right, float), P),
                average=estimate(right_P / samples, P * samples) if samples else None,
                pass_at_k={
                    k: estimate(passed(right_P, samples, k), P * (samples // k)) for k in pass_at_k
                },
                best=estimate(np.array([*map(best_of, among)]), P) if among else None,
                majority=estimate(np.array([*map(majority_of, among)]), P) if among else None,
            )
        return scores


def metrics_of(scores: Mapping[str, Score]) -> dict[str, float]:
    """Returns `eval/<task>/<name>` for each task."""
    return {
        f"eval/{task}/{name}": value
        for task, score in scores.items()
        for name, value in score.metrics().items()
    }


def best_of(samples: Sequence[SampleChoice]) -> float:
    """Returns the accuracy of the sample with the highest grade: 1 if it is right, else 0.

    If several samples have this grade, it is the share of them that is right. A sample without a
    grade comes last.
    """
    grades = [-inf if each.grade is None else each.grade for each in samples]
    best = [each.correct for each, x in zip(samples, grades, strict=True) if x == max(grades)]
    return sum(best) / len(best)


def majority_of(samples: Sequence[SampleChoice]) -> float:
    """Returns 1 if the answer with the largest sum of weights is right, else 0 (2206.02336).

    The weight of a sample is exp(grade), its strength in the Bradley-Terry model of a reward model,
    and 0 without a grade. Of answers with equal sums, the first counts.
    """
    highest = max((each.grade for each in samples if each.grade is not None), default=0.0)
    weights: dict[Any, float] = defaultdict(float)
    right: dict[Any, bool] = {}
    for each in samples:
        weights[each.answer] += 0.0 if each.grade is None else exp(each.grade - highest)
        right.setdefault(each.answer, each.correct)
    return float(right[max(weights, key=lambda answer: weights[answer])])


def passed(right_P: np.ndarray, samples: int, k: int) -> np.ndarray:
    """Returns the unbiased estimates of pass@k of prompts with c of n samples right.

    1 - C(n - c, k) / C(n, k), the probability that k of the n samples, drawn without replacement,
    include a right one (2107.03374). It is computed as 1 - prod_{i = n-c+1}^{n} (1 - k / i), where
    no factor is large.
    """
    estimates = {
        c: 1 - prod(1 - k / i for i in range(samples - c + 1, samples + 1))
        if samples - c >= k
        else 1.0
        for c in set(right_P.tolist())
    }
    return np.array([estimates[c] for c in right_P.tolist()])


def estimate(values_P: np.ndarray, most: int) -> Estimate:
    """Returns the mean of values in [0, 1], one for each prompt, with the interval defined above.

    Args:
      most: the largest n_eff, since samples of equal values might be so by chance.
    """
    P = len(values_P)
    p = float(np.sum(values_P)) / P
    if P < FEW:
        from scipy.special import stdtrit  # slow to import, and few runs need it

        more = np.concatenate([values_P, [0.0, 0.0, 1.0, 1.0]])
        half = float(stdtrit(P + 3, 0.975)) * float(np.std(more)) / sqrt(P + 4)
        mean = float(np.mean(more))
        return Estimate(value=p, low=max(0.0, mean - half), high=min(1.0, mean + half))
    variance = float(np.sum((values_P - p) ** 2)) / P
    n = P  # without a right or a wrong prompt, nothing is known about the variance between prompts
    if 0.0 < p < 1.0:
        n = min(most, P * p * (1 - p) / variance) if variance else most
    low, high = wilson(p, n)
    return Estimate(value=p, low=low, high=high)


def wilson(p: float, n: float) -> tuple[float, float]:
    """Returns Wilson's 95 % interval of a proportion p of n trials."""
    center = p + Z**2 / (2 * n)
    half = Z * sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    low, high = ((center + side) / (1 + Z**2 / n) for side in (-half, half))
    return (0.0 if p == 0 else low), (1.0 if p == 1 else high)
