"""Group-relative advantages, scaled up to compensate for groups with equal rewards."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, masked_sum, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class GPG(AdvantageOptions):
    """Group Policy Gradient (2504.02546), on every response token:

        A = B / M (r - mean(group))

    B counts the batch's valid samples, and M those in groups whose rewards differ. The factor makes
    up for the other groups, which add 0 to the mean gradient. M is counted by group, as in the
    paper, not by A != 0, which rounding would decide for a reward equal to the mean.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        valid_B = rewards.valid_B.astype(jnp.float32)
        scale = jnp.sum(valid_B) / jnp.maximum(masked_sum(valid_B, ~group.equal_B), 1)
        return spread_over_tokens(scale * group.difference_B, trajectories)
