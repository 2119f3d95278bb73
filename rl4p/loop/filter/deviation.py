"""A filter that keeps groups whose samples have different rewards."""

from dataclasses import dataclass
from typing import ClassVar

from rl4p.base.types import Group
from rl4p.configuration.bounds import NonNegative


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
