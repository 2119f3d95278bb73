"""The grades of texts as values of JSON, for the jobs that grade without training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4p.errors import InputError
from rl4p.protocols.phases import Remembers
from rl4p.protocols.reward import TextReward
from rl4p.reward.live_terms import of_prompts, rows_of_groups
from rl4p.types import Episode

AT_A_TIME = 1024  # responses that a reward term grades together


@dataclass(frozen=True, kw_only=True)
class Grades:
    """The grades of one response.

    Attributes:
      total: the weighted sum of the terms; None if the response could not be graded.
      terms: the unweighted grades by name; None where a term does not apply.
      valid: false if a grader failed, or no term applies.
    """

    total: float | None
    terms: dict[str, float | None]
    valid: bool


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


def grade(reward: TextReward, episodes: Sequence[Episode]) -> list[Grades]:
    """Returns the grades of the episodes, in their order.

    Raises:
      RunError: more samples are invalid than the reward allows.
    """
    found: dict[int, Grades] = {}
    for part in parts(episodes):
        rewards = reward.of_texts([episodes[b] for b in part])
        applies = {name: rewards.graded(name) for name in rewards.terms}
        for row, b in enumerate(part):
            valid = bool(rewards.valid_B[row])
            found[b] = Grades(
                total=float(rewards.total_B[row]) if valid else None,
                terms={
                    name: float(grade_B[row]) if applies[name][row] else None
                    for name, grade_B in rewards.terms.items()
                },
                valid=valid,
            )
    return [found[b] for b in range(len(episodes))]


def parts(episodes: Sequence[Episode]) -> Iterator[np.ndarray]:
    """Yields the indices of about `AT_A_TIME` episodes; never divides those to a prompt."""
    part: list[np.ndarray] = []
    for group in rows_of_groups(of_prompts(episodes)):
        if part and sum(map(len, part)) + len(group) > AT_A_TIME:
            yield np.concatenate(part)
            part = []
        part.append(group)
    if part:
        yield np.concatenate(part)
