"""Advantages for the best sample of each group only."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, group_total, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class PassK(AdvantageOptions):
    """The leave-one-out advantage of the best of a group (2503.19595), on every response token:

        A = (r1 - r2) / (std(group) + epsilon) for the best sample, 0 for the others

    r1 and r2 are the two highest rewards. If several samples share the highest reward, r2 = r1 and
    A = 0, because the group's best would be as good without one of them. The division is verl's,
    with a deviation that divides by count - 1; the paper has no division.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward.

    Attributes:
      epsilon: added to the deviation.
    """

    compares_group = True
    one_sign = True

    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        total_B, valid_B, group_ids_B = rewards.total_B, rewards.valid_B, trajectories.group_ids_B
        group = group_statistics(total_B, valid_B, group_ids_B, ddof=1)
        best_B = valid_B & (total_B == group.highest_B)
        alone_B = group_total(best_B.astype(jnp.float32), group_ids_B) == 1
        second_B = group_statistics(total_B, valid_B & ~best_B, group_ids_B).highest_B
        gain_B = (group.highest_B - second_B) / (group.std_B + self.epsilon)
        learns_B = best_B & alone_B & ~group.equal_B
        return spread_over_tokens(jnp.where(learns_B, gain_B, 0.0), trajectories)
