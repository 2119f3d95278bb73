"""Group-relative advantages with a length-weighted baseline."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, group_total, response_lengths, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class OPO(AdvantageOptions):
    """On-Policy RL with Optimal reward baseline (2505.23585), on every response token:

        A = r - sum(l r) / sum(l) over the group, l the response's length in tokens

    The baseline has the least variance if the squared gradient of a sequence grows with its length.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples with tokens, or in which these all have the same reward.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        lengths_B, group_ids_B = response_lengths(trajectories), trajectories.group_ids_B
        counts_B = rewards.valid_B & (lengths_B > 0)
        group = group_statistics(rewards.total_B, counts_B, group_ids_B)
        weights_B = jnp.where(counts_B, lengths_B, 0.0)
        # Relative to the mean, so that a large reward common to all costs no precision.
        shift_B = group_total(weights_B * group.difference_B, group_ids_B)
        shift_B = shift_B / jnp.maximum(group_total(weights_B, group_ids_B), 1)
        zero_B = group.equal_B | ~counts_B
        return spread_over_tokens(
            jnp.where(zero_B, 0.0, group.difference_B - shift_B), trajectories
        )
