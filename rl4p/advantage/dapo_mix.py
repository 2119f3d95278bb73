"""A mix of group-relative and batch-relative advantages."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero, NonNegative
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens, whiten


@dataclass(frozen=True, kw_only=True)
class DAPOMix(AdvantageOptions):
    """GRPO's advantage plus a share of the batch-normalised one, on every response token:

        A = (r - mean(group)) / (std(group) + epsilon)
          + alpha (r - mean(batch)) / (std(batch) + epsilon)

    Mean and deviation of the batch are over its valid samples. Deviations divide by count - 1.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward. DAPO (2503.14476) would not train on
    such groups; here they count in the batch's statistics.

    Attributes:
      alpha: weight of the batch-relative part.
      epsilon: added to the deviations.
    """

    compares_group = True

    alpha: NonNegative = 0.2
    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B, ddof=1)
        relative_B = group.difference_B / (group.std_B + self.epsilon)
        global_B = whiten(rewards.total_B, rewards.valid_B, epsilon=self.epsilon, ddof=1)
        mixed_B = jnp.where(group.equal_B, 0.0, relative_B + self.alpha * global_B)
        return spread_over_tokens(mixed_B, trajectories)
