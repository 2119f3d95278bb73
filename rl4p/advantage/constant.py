"""The same advantage for every sample."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class Constant(AdvantageOptions):
    """The advantage A = value on every response token of every valid sample.

    With `rollout=demonstrations update=reinforce` this is supervised training.
    """

    one_sign = True
    reads_total = False
    uniform = True

    value: float = 1.0

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        return spread_over_tokens(jnp.where(rewards.valid_B, self.value, 0.0), trajectories)
