"""Group-relative advantages with a baseline per token."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import loss_mask, returns_to_go


@dataclass(frozen=True, kw_only=True)
class OptimalTokenBaseline(AdvantageOptions):
    """The baseline of least variance at each token (2602.07078), per token:

        W_t = sum over j <= t of (1 - 2 pi_j + sum over the vocabulary of pi^2)
        B_t = sum(R_t W_t) / sum(W_t), over the samples of the group that have a token t
        A_t = R_t - B_t

    R_t is the reward from t on, and pi_j the probability of the chosen token j. W_t is the squared
    norm of the gradient of the logits up to t. The index t counts only tokens that the policy
    chose, from the first of the response (verl's variant for several turns).

    A_t is exactly 0 if the R_t of the group are all equal. This includes groups of one sample, and
    tokens that only the longest response reaches; verl can give the whole R_t there. A_t is also 0
    on invalid samples, and where sum(W_t) is 0 because no token so far was a real choice.
    """

    needs = frozenset({"proximal_logprobs", "collision"})
    compares_group = True

    def __call__(
        self, trajectories: Trajectories, rewards: Rewards, *, scores: Mapping[str, Array]
    ) -> Array:
        mask_BT = loss_mask(trajectories, rewards)
        B, T = mask_BT.shape
        nth_BT = jnp.cumsum(mask_BT, axis=1, dtype=jnp.int32) - 1
        # [group, nth token]; index T is out of bounds, and is neither written nor read.
        place = (trajectories.group_ids_B[:, None], jnp.where(mask_BT, nth_BT, T))

        def read(table_BT: Array) -> Array:
            return jnp.asarray(table_BT).at[place].get(mode="fill", fill_value=0)

        def total(x_BT: Array) -> Array:
            return read(jnp.zeros((B, T), jnp.float32).at[place].add(x_BT, mode="drop"))

        probability_BT = jnp.exp(jnp.where(mask_BT, scores["proximal_logprobs"], 0.0))
        collision_BT = jnp.where(mask_BT, scores["collision"], 1.0)
        # At least (1 - pi)^2; only rounding can make it negative.
        energy_BT = jnp.maximum(1.0 - 2.0 * probability_BT + collision_BT, 0.0)
        weight_BT = jnp.cumsum(jnp.where(mask_BT, energy_BT, 0.0), axis=1)
        returns_BT = returns_to_go(trajectories, rewards)
        highest_BT = read(jnp.full((B, T), -jnp.inf).at[place].max(returns_BT, mode="drop"))
        lowest_BT = read(jnp.full((B, T), jnp.inf).at[place].min(returns_BT, mode="drop"))
        total_weight_BT = total(weight_BT)
        weighed_BT = total_weight_BT > 0
        baseline_BT = total(weight_BT * returns_BT) / jnp.where(weighed_BT, total_weight_BT, 1.0)
        learns_BT = mask_BT & weighed_BT & (highest_BT > lowest_BT)
        return jnp.where(learns_BT, returns_BT - baseline_BT, 0.0)
