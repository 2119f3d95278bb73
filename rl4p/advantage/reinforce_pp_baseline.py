"""Group-relative advantages, whitened over the batch."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, loss_mask, spread_over_tokens, whiten


@dataclass(frozen=True, kw_only=True)
class ReinforcePPBaseline(AdvantageOptions):
    """REINFORCE++-baseline (2501.03262), on every response token:

        d = r - mean(group)
        A = (d - mean(d)) / (std(d) + epsilon), mean and std over the batch's loss tokens

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward. The paper gives such groups -mean(d) /
    std(d), which is not 0 if lengths differ. Their valid samples count in mean and std.

    Attributes:
      epsilon: added to the deviation.
    """

    compares_group = True

    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        difference_BT = spread_over_tokens(group.difference_B, trajectories)
        white_BT = whiten(difference_BT, loss_mask(trajectories, rewards), epsilon=self.epsilon)
        return jnp.where(group.equal_B[:, None], 0.0, white_BT)
