"""The leave-one-out baseline."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class RLOO(AdvantageOptions):
    """REINFORCE Leave-One-Out (2402.14740), where the baseline of a sample is its siblings' mean:

        A = r - mean(group without it) = G / (G - 1) (r - mean(group))

    G counts the group's valid samples. The advantage is exactly 0 for invalid samples, and in a
    group that has fewer than two valid samples or whose valid samples all have the same reward.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        scale_B = group.count_B / jnp.maximum(group.count_B - 1, 1)
        return spread_over_tokens(scale_B * group.difference_B, trajectories)
