"""Filters of graded groups: which of them are worth a place in the batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl4p.base.types import Group
from rl4p.configuration.bounds import Natural, NonNegative, Positive, TopShare
from rl4p.protocols.collection import Filter


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Keeps a group if the standard deviation of its valid rewards is above a limit.

    This is the filter of dynamic sampling in DAPO (Yu et al., 2025): if all samples have the same
    reward, their advantages are 0.

    Attributes:
      above: the limit.
    """

    fewest_samples: ClassVar[int] = 2

    above: NonNegative = 0.0

    def __call__(self, group: Group) -> bool:
        rewards = group.valid_rewards
        # The deviation of equal numbers may be a rounding error, but their range is 0.
        differ = len(rewards) > 1 and rewards.max() > rewards.min()
        return bool(differ and rewards.std() > self.above)


@dataclass(frozen=True, kw_only=True)
class AnySuccess:
    """Keeps a group if at least one of its samples is right.

    Attributes:
      term: the reward term that is at least 1 for a right sample; None for the total reward.
    """

    term: str | None = "correct"

    def __call__(self, group: Group) -> bool:
        return bool(group.right(self.term).any())


@dataclass(frozen=True, kw_only=True)
class LeastReward:
    """Keeps a group if the mean of its valid rewards is at least `least`."""

    least: float

    def __call__(self, group: Group) -> bool:
        rewards = group.valid_rewards
        return bool(len(rewards) and rewards.mean() >= self.least)


@dataclass(frozen=True, kw_only=True)
class Length:
    """Keeps a group if the mean length of its responses is between two limits.

    Attributes:
      least, most: the limits in tokens, both included; None is no limit.
    """

    least: Natural = 0
    most: Positive | None = None

    def __post_init__(self) -> None:
        if not self.least and self.most is None:
            raise ValueError("a length needs a limit, or it keeps every group: set least or most.")
        if self.most is not None and self.least > self.most:
            raise ValueError(f"least={self.least} is more than most={self.most}.")

    def __call__(self, group: Group) -> bool:
        mean = float(np.sum(group.trajectories.response_mask_BT, axis=1).mean())
        return self.least <= mean and (self.most is None or mean <= self.most)


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """Keeps a group if enough of its responses have different texts.

    Attributes:
      least: the least number of different responses, divided by the number of samples.
    """

    least: TopShare = 0.5

    def __call__(self, group: Group) -> bool:
        texts = [episode.response.strip() for episode in group.episodes]
        return len(set(texts)) >= self.least * len(texts)


@dataclass(frozen=True, kw_only=True)
class AnyOf:
    """Keeps a group if at least one of its filters keeps it. A collector's filters must all do.

    Attributes:
      filters: filters by name.
    """

    filters: Mapping[str, Filter]

    def __post_init__(self) -> None:
        if len(self.filters) < 2:
            raise ValueError(
                "any_of needs at least two filters: +filter@collector.filters.any_of.filters.NAME="
                "OPTION for each."
            )

    def __call__(self, group: Group) -> bool:
        return any(keeps(group) for keeps in self.filters.values())
