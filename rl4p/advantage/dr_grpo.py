"""Group-relative advantages without the deviation."""

from dataclasses import dataclass

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class DrGRPO(AdvantageOptions):
    """The advantage of Dr. GRPO (2503.20783): A = r - mean(group), on every response token.

    Dividing by the deviation would favour prompts that are nearly always or nearly never solved.
    The paper's other half is the loss: `update.aggregation=constant`.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        group = group_statistics(rewards.total_B, rewards.valid_B, trajectories.group_ids_B)
        return spread_over_tokens(group.difference_B, trajectories)
