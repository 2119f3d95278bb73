"""The reward from a turn on."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import Share
from rl4p.learner.advantage_options import AdvantageOptions, turn_returns
from rl4p.learner.masking import loss_mask


@dataclass(frozen=True, kw_only=True)
class TurnReturns(AdvantageOptions):
    """REINFORCE with the return of each turn, on every token of turn k:

        G_k = r_k + gamma G_{k+1}
        A_k = G_k - baseline

    r_k is the sum of the rewards of the turn's tokens (`Rewards.tokens_BT`); the last turn receives
    the rest of the reward. A row of one turn gets exactly what `advantage=reinforce` gives it.

    Samples do not affect each other, so groups and equal rewards are not special. An invalid sample
    gets 0.

    Attributes:
      gamma: the discount per turn.
      baseline: the constant that is subtracted.
    """

    reads_turns = True

    gamma: Share = 1.0
    baseline: float = 0.0

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        returns_BT = turn_returns(trajectories, rewards, self.gamma)
        return jnp.where(loss_mask(trajectories, rewards), returns_BT - self.baseline, 0.0)
