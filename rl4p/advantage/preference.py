"""The best sample of each group against the worst."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class Preference(AdvantageOptions):
    """The pairs of DPO (2305.18290): in each group +1 for the best sample, -1 for the worst.

    The values are on every response token. All other samples get 0, and so do invalid samples and
    groups with fewer than two valid samples or with equal rewards. Of equally good samples the
    first row is taken: this is the only advantage that depends on the order of rows.
    """

    compares_group = True

    def __call__(self, trajectories: Trajectories, rewards: Rewards) -> Array:
        total_B, valid_B, group_ids_B = rewards.total_B, rewards.valid_B, trajectories.group_ids_B
        group = group_statistics(total_B, valid_B, group_ids_B)
        rows = total_B.shape[0]
        row_B = jnp.arange(rows, dtype=jnp.int32)

        def first(value_B: Array) -> Array:
            candidate_B = jnp.where(valid_B & (total_B == value_B), row_B, rows)
            return jax.ops.segment_min(candidate_B, group_ids_B, num_segments=rows)[group_ids_B]

        best_B, worst_B = first(group.highest_B) == row_B, first(group.lowest_B) == row_B
        sign_B = best_B.astype(jnp.float32) - worst_B.astype(jnp.float32)
        return spread_over_tokens(jnp.where(group.equal_B, 0.0, sign_B), trajectories)
