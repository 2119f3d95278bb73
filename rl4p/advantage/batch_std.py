"""Group-relative advantages, divided by the deviation of the batch."""

from dataclasses import dataclass

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, masked_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class BatchStd(AdvantageOptions):
    """Lite PPO's advantage (2508.08221), on every response token:

        A = (r - mean(group)) / (std(batch) + epsilon)

    std(batch) is over the rewards of all valid samples and divides by count - 1, as in TRL.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward. Such groups count in std(batch).

    Attributes:
      epsilon: added to the deviation.
    """

    compares_group = True

    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        batch = masked_statistics(rewards.total_B, rewards.valid_B, ddof=1)
        return spread_over_tokens(group.difference_B / (batch.std + self.epsilon), trajectories)
