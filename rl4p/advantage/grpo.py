"""Group-relative advantages."""

from dataclasses import dataclass

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero, Natural
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class GRPO(AdvantageOptions):
    """Group Relative Policy Optimization (2402.03300):

        A = (r - mean(group)) / (std(group) + epsilon), the same on every response token

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward.

    Attributes:
      epsilon: added to the deviation.
      ddof: the deviation divides by count - ddof: 1 as in TRL and verl, 0 as in the paper's std.
    """

    compares_group = True

    epsilon: AboveZero = 1e-4
    ddof: Natural = 1

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(
            rewards.total_B, rewards.valid_B, trajectories.group_ids_B, ddof=self.ddof
        )
        return spread_over_tokens(group.difference_B / (group.std_B + self.epsilon), trajectories)
