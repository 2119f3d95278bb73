"""A transform that replaces rewards."""

from dataclasses import dataclass, replace

import numpy as np

from rl4p.base.types import Group
from rl4p.configuration.bounds import Finite


@dataclass(frozen=True, kw_only=True)
class Relabel:
    """Replaces the total reward by `right` for right samples, and by `wrong` for the others.

    Samples that are invalid or to which the term does not apply keep their reward, and all keep
    their terms. The rewards of single tokens are discarded: the total would include them.

    Attributes:
      term: the reward term that is at least 1 for a right sample; None for the total reward.
      right, wrong: the new rewards.
    """

    term: str | None = "correct"
    right: Finite = 1.0
    wrong: Finite = -1.0

    def __post_init__(self) -> None:
        if self.right == self.wrong:
            raise ValueError(
                f"right and wrong are both {self.right:g}: all rewards would be equal."
            )

    def __call__(self, group: Group) -> Group:
        rewards, right_B = group.rewards, group.right(self.term)
        graded_B = rewards.valid_B if self.term is None else rewards.graded(self.term)
        label_B = np.where(right_B, np.float32(self.right), np.float32(self.wrong))
        total_B = np.where(graded_B, label_B, rewards.total_B)
        return replace(group, rewards=replace(rewards, total_B=total_B, tokens_BT=None))
