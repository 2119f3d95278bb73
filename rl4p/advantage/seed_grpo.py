"""Group-relative advantages, reduced where the answers disagree."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, group_total, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class SEEDGRPO(AdvantageOptions):
    """Semantic-Entropy-Enhanced GRPO (2505.12346), on every response token:

        H = -sum over answers c of p_c log p_c, p_c the share of the group's samples that gave c
        A = (r - mean(group)) / (1 + alpha H / log G)

    G counts the group's valid samples. H / log G is 1 if no two answers agree, so that a prompt
    with uncertain answers changes the policy less.

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward.

    Attributes:
      alpha: how much disagreement reduces the advantage; 0 gives Dr. GRPO's advantage.
    """

    alpha: NonNegative = 1.0

    needs = frozenset({"answer_clusters"})
    compares_group = True

    def __call__(
        self, trajectories: Trajectories, rewards: Rewards, *, scores: Mapping[str, Array]
    ) -> Array:
        valid_B, group_ids_B = rewards.valid_B, trajectories.group_ids_B
        group = group_statistics(rewards.total_B, valid_B, group_ids_B)
        agreeing_B = count_equal(scores["answer_clusters"], valid_B, group_ids_B)
        share_B = jnp.maximum(agreeing_B, 1) / jnp.maximum(group.count_B, 1)
        surprise_B = jnp.where(valid_B, -jnp.log(share_B), 0.0)
        entropy_B = group_total(surprise_B, group_ids_B) / jnp.maximum(group.count_B, 1)
        disagreement_B = entropy_B / jnp.log(jnp.maximum(group.count_B, 2))
        return spread_over_tokens(
            group.difference_B / (1.0 + self.alpha * disagreement_B), trajectories
        )


def count_equal(ids_B: Array, valid_B: Array, group_ids_B: Array) -> Array:
    """Returns how many valid samples of its group share a sample's id; ids may be any integers."""
    order_B = jnp.lexsort((ids_B, group_ids_B))
    pair_B2 = jnp.stack([group_ids_B, ids_B], axis=1)[order_B]
    starts_B = jnp.any(pair_B2[1:] != pair_B2[:-1], axis=1)
    run_B = jnp.pad(jnp.cumsum(starts_B, dtype=jnp.int32), (1, 0))
    valid_B = valid_B.astype(jnp.float32)[order_B]
    count_B = jax.ops.segment_sum(valid_B, run_B, num_segments=ids_B.shape[0])[run_B]
    return jnp.zeros_like(count_B).at[order_B].set(count_B)
