"""Group-relative advantages, divided by the group's mean."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class MaxRL(AdvantageOptions):
    """Maximum Likelihood RL (2602.02710), on every response token:

        A = (r - mean(group)) / mean(group), 0 where the mean is not above 0

    For rewards of 0 and 1, this truncated maximum-likelihood objective weights rare successes most.
    With negative rewards, a mean just above 0 makes A arbitrarily large; `clip` limits it.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        positive_B = group.mean_B > 0
        scaled_B = group.difference_B / jnp.where(positive_B, group.mean_B, 1.0)
        return spread_over_tokens(jnp.where(positive_B, scaled_B, 0.0), trajectories)
