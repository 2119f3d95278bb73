"""A filter that keeps groups with a sufficient mean reward."""

from dataclasses import dataclass

from rl4p.base.types import Group


@dataclass(frozen=True, kw_only=True)
class LeastReward:
    """Keeps a group if the mean of its valid rewards is at least `least`."""

    least: float

    def __call__(self, group: Group) -> bool:
        rewards = group.valid_rewards
        return bool(len(rewards) and rewards.mean() >= self.least)
