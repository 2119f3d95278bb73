"""The grades of samples, of a run and of jobs that grade without training."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Finish, Prompt, Rewards
from rl4p.loop.grading import without_failures
from rl4p.protocols.phases import Remembers
from rl4p.protocols.reward import TextReward
from rl4p.reward.live_terms import group_ids_of, rows_of_groups
from rl4p.runs.sample import Sample, Status
from rl4p.runs.turns import turns_of

AT_A_TIME = 1024  # responses that a reward term grades together
STATUS = {
    Finish.STOP: Status.COMPLETED,
    Finish.LENGTH: Status.TRUNCATED,
    Finish.ABORT: Status.ABORTED,
}
FINISH = {status: finish for finish, status in STATUS.items()}


@dataclass(frozen=True, kw_only=True)
class Grades:
    """The grades of one response, which are fields of its `Sample`.

    Attributes:
      reward: the weighted sum of the terms; None if the response could not be graded.
      terms: the unweighted grades by name; None where a term does not apply.
      valid: false if a grader failed, or no term applies.
    """

    reward: float | None
    terms: dict[str, float | None]
    valid: bool


def grades_of(rewards: Rewards) -> list[Grades]:
    """Returns the grades of each row of rewards, which are on the host."""
    applies = {name: rewards.graded(name) for name in rewards.terms}
    return [
        Grades(
            reward=float(total) if valid else None,
            terms={
                name: float(grade_B[row]) if applies[name][row] else None
                for name, grade_B in rewards.terms.items()
            },
            valid=bool(valid),
        )
        for row, (total, valid) in enumerate(zip(rewards.total_B, rewards.valid_B, strict=True))
    ]


def text_reward(reward: Any, *, otherwise: str = "") -> TextReward:
    """Returns the reward, if it can grade texts alone.

    Args:
      otherwise: what else the user may do, to end the error message.

    Raises:
      InputError: it needs arrays, or it has a memory.
    """
    if not isinstance(reward, TextReward) or isinstance(reward, Remembers):
        raise InputError(
            f"{type(reward).__name__} cannot grade texts alone: choose reward=weighted or "
            f"reward=router{otherwise}."
        )
    return reward


def graded(
    samples: Sequence[Sample], prompts: Sequence[Prompt], reward: TextReward
) -> list[Sample]:
    """Returns samples with the grades of a reward.

    Args:
      prompts: the prompt of each sample. Those with an equal task and id are a group.

    Raises:
      RunError: more samples are invalid than the reward allows.
    """
    episodes = [
        Episode(
            prompt=prompt,
            response=sample.response,
            tokens=sample.length,
            finish=None if sample.status is None else FINISH[sample.status],
            turns=turns_of(sample.turns or ()),
            failure=sample.failure,
        )
        for sample, prompt in zip(samples, prompts, strict=True)
    ]
    pairs = zip(samples, grade(reward, episodes), strict=True)
    return [replace(sample, **vars(grades)) for sample, grades in pairs]


def grade(reward: TextReward, episodes: Sequence[Episode]) -> list[Grades]:
    """Returns the grades of the episodes, in their order.

    Raises:
      RunError: more samples are invalid than the reward allows.
    """
    grades: dict[int, Grades] = {}
    for part in parts(episodes):
        own = [episodes[b] for b in part]
        rewards = without_failures(reward.grade_texts(own), own)
        grades |= zip(part.tolist(), grades_of(rewards), strict=True)
    return [grades[b] for b in range(len(episodes))]


def parts(episodes: Sequence[Episode]) -> Iterator[np.ndarray]:
    """Yields the indices of about `AT_A_TIME` episodes; never divides the samples of a prompt."""
    part: list[np.ndarray] = []
    for group in rows_of_groups(group_ids_of(episodes)):
        if part and sum(map(len, part)) + len(group) > AT_A_TIME:
            yield np.concatenate(part)
            part = []
        part.append(group)
    if part:
        yield np.concatenate(part)


def mean_grades(samples: Iterable[Sample]) -> str:
    """Returns the mean of each term over the samples that it graded, in words."""
    grades: dict[str, list[float]] = {}
    for sample in samples:
        for name, grade_of_term in sample.terms.items():
            if grade_of_term is not None:
                grades.setdefault(name, []).append(grade_of_term)
    means = [f"{name} {sum(values) / len(values):.4f}" for name, values in grades.items()]
    return f"mean grades: {', '.join(means)}" if means else ""
