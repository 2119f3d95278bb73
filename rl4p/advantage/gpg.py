"""Group-relative advantages, scaled up for the groups that teach nothing."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, masked_sum, spread_over_tokens
from rl4p.types import Array, Rewards, Trajectories


@dataclass(frozen=True, kw_only=True)
class GPG(AdvantageOptions):
    """Group Policy Gradient (2504.02546), on every response token:

        A = B / M (r - mean(group))

    B counts the batch's valid samples and M those of them in groups whose rewards differ: what the
    equal groups leave out of the mean gradient is made up for. (Counted by group as in the paper,
    and not by A != 0, which rounding decides for a reward that is the mean.)

    A sample without a valid sibling, or whose valid siblings all have its reward, gets exactly 0,
    and so does an invalid sample.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        valid_B = rewards.valid_B.astype(jnp.float32)
        scale = jnp.sum(valid_B) / jnp.maximum(masked_sum(valid_B, ~group.equal_B), 1)
        return spread_over_tokens(scale * group.difference_B, trajectories)
