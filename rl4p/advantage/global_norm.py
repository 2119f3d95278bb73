"""Batch-relative advantages."""

from dataclasses import dataclass

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import spread_over_tokens, whiten


@dataclass(frozen=True, kw_only=True)
class GlobalNorm(AdvantageOptions):
    """The advantage A = (r - mean(batch)) / (std(batch) + epsilon), on every response token.

    Statistics are over valid samples, and the deviation divides by count - 1. Groups are ignored: a
    batch of equal rewards gets exactly 0, a group does not. An invalid sample gets 0.

    Attributes:
      epsilon: added to the deviation.
    """

    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        white_B = whiten(rewards.total_B, rewards.valid_B, epsilon=self.epsilon, ddof=1)
        return spread_over_tokens(white_B, trajectories)
