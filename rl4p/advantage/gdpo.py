"""Each term of the reward normalised by itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp

from rl4p.configuration.bounds import AboveZero
from rl4p.errors import InputError
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, masked_statistics, spread_over_tokens
from rl4p.types import Array, Rewards, Trajectories


@dataclass(frozen=True, kw_only=True)
class GDPO(AdvantageOptions):
    """Group reward-Decoupled normalization (2601.05242), on every response token:

        S = sum over terms k of w_k (r_k - mean_k(group)) / (std_k(group) + epsilon)
        A = S / (std(S) + epsilon), over the batch's valid samples

    so that a term of small spread is not drowned by one of large. Deviations divide by count - 1.
    The paper subtracts mean(S) too, which is 0 up to rounding: S sums to 0 in each group. The
    reward's own weights and its total are not looked at.

    A sample without a valid sibling, or whose valid siblings equal it in every term, gets exactly
    0, and so does an invalid sample.

    Attributes:
      weights: w_k by the name of the term; 1 for a term that is not named.
      epsilon: added to the deviations.
    """

    compares_group = True
    reads_total = False

    # Not in the hash, which a mapping does not have and the compile cache asks for.
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        if unknown := sorted(set(self.weights) - set(rewards.terms)):
            raise InputError(
                f"advantage.weights names {unknown}, but the terms of the reward are "
                f"{sorted(rewards.terms)}."
            )
        sum_B = jnp.zeros_like(rewards.total_B)
        for name, term_B in sorted(rewards.terms.items()):
            group = group_statistics(term_B, rewards.valid_B, trajectories.group_ids_B, ddof=1)
            relative_B = group.difference_B / (group.std_B + self.epsilon)
            sum_B = sum_B + self.weights.get(name, 1.0) * relative_B
        batch = masked_statistics(sum_B, rewards.valid_B, ddof=1)
        return spread_over_tokens(sum_B / (batch.std + self.epsilon), trajectories)
