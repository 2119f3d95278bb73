"""The greedy response as the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class ReMax(AdvantageOptions):
    """ReMax (2310.10505): A = r - r(greedy response to the same prompt), on every response token.

    The baseline does not depend on the group: a single sample has an advantage, and equal rewards
    give 0 only if the greedy response has the same reward. Invalid samples get 0, and so do samples
    whose greedy response could not be graded (nan).
    """

    needs = frozenset({"greedy_rewards"})

    def __call__(
        self, trajectories: Trajectories, rewards: Rewards, *, scores: Mapping[str, Array]
    ) -> Array:
        greedy_B = scores["greedy_rewards"]
        graded_B = rewards.valid_B & jnp.isfinite(greedy_B)
        return spread_over_tokens(
            jnp.where(graded_B, rewards.total_B - greedy_B, 0.0), trajectories
        )
