"""The reward minus a constant."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class Reinforce(AdvantageOptions):
    """The simplest baseline (Williams 1992): A = r - baseline, on every response token.

    Samples do not affect each other, so groups and equal rewards are not special. Only an invalid
    sample, or one whose reward is the baseline, gets 0.
    """

    baseline: float = 0.0

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        advantages_B = jnp.where(rewards.valid_B, rewards.total_B - self.baseline, 0.0)
        return spread_over_tokens(advantages_B, trajectories)
