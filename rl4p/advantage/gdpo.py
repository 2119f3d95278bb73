"""Group-relative advantages with each reward term normalised separately."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, masked_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class GDPO(AdvantageOptions):
    """Group reward-Decoupled normalization (2601.05242), on every response token:

        S = sum over terms k of w_k (r_k - mean_k(group)) / (std_k(group) + epsilon)
        A = S / (std(S) + epsilon), over the batch's valid samples

    A term of large spread thus cannot hide one of small spread. Samples to which a term does not
    apply are left out of its mean and deviation, and it adds 0 to their S. Deviations divide by
    count - 1. The paper also subtracts mean(S), which is 0 up to rounding, because S sums to 0 in
    each group. The reward's own weights and its total are ignored.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples are equal in every term.

    Attributes:
      weights: w_k by the name of the term; 1 for a term that is not named.
      epsilon: added to the deviations.
    """

    compares_group = True
    reads_total = False

    # Not in the hash: the compile cache hashes a phase, and a mapping has no hash.
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    epsilon: AboveZero = 1e-4

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        if unknown := sorted(set(self.weights) - set(rewards.terms)):
            raise InputError(
                f"advantage.weights names {unknown}, but the terms of the reward are "
                f"{sorted(rewards.terms)}."
            )
        sum_B = jnp.zeros_like(rewards.total_B)
        # Sorted, because the rounding of a sum depends on its order.
        for name, term_B in sorted(rewards.terms.items()):
            graded_B = rewards.graded(name)
            group = group_statistics(term_B, graded_B, trajectories.group_ids_B, ddof=1)
            relative_B = group.difference_B / (group.std_B + self.epsilon)
            sum_B = sum_B + self.weights.get(name, 1.0) * relative_B
        batch = masked_statistics(sum_B, rewards.valid_B, ddof=1)
        return spread_over_tokens(sum_B / (batch.std + self.epsilon), trajectories)
