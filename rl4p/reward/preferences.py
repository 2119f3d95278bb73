"""The reward of preference pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl4p.base.types import Episode, Rewards, Trajectories


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """Reward 1 for the first response of each group, which a person preferred, and 0 for the other.

    `rollout=preferences` gives the responses in this order; other rollouts are refused.
    """

    pairs: ClassVar[bool] = True
    whole_groups: ClassVar[bool] = True

    def __call__(self, trajectories: Trajectories, episodes: Sequence[Episode]) -> Rewards:
        group_ids_B = np.asarray(trajectories.group_ids_B)
        total_B = np.zeros(len(group_ids_B), np.float32)
        total_B[np.unique(group_ids_B, return_index=True)[1]] = 1.0
        return Rewards(total_B=total_B, terms={}, valid_B=np.ones(len(total_B), bool))
