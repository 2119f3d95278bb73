"""Masked reductions and group statistics, each stated once for the whole project.

All of them are sums over counts, so that neither padding, nor the order of rows, nor a split into
microbatches changes a result. Masks are applied with `where` before anything that could overflow:
``nan * 0`` is nan.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.types import Array, Trajectories


def masked_sum(values: Array, mask: Array) -> Array:
    """Sum of the values where the mask is true."""
    return jnp.sum(jnp.where(mask, values, 0))


class GroupStatistics(NamedTuple):
    """Statistics of each sample's group, over its valid samples, spread back to the samples."""

    count_B: Array  # valid samples in the group, float32
    mean_B: Array
    std_B: Array
    equal_B: Array  # bool: fewer than two valid samples, or all of them equal


def group_statistics(
    values_B: Array, valid_B: Array, group_ids_B: Array, *, ddof: int = 0
) -> GroupStatistics:
    """Count, mean and deviation of each group, found by group id and never by position.

    Args:
      values_B: float32; entries that are not valid may hold anything, nan too.
      valid_B: bool, the samples that count.
      group_ids_B: int32 in [0, B).
      ddof: the deviation divides by count - ddof.

    `equal_B` is decided on the values themselves (largest = smallest), so that a group of equal
    rewards can be given exactly 0 and not the rounding noise of r - mean(r).
    """
    groups = values_B.shape[0]
    clean_B = jnp.where(valid_B, values_B, 0.0)

    def total(x_B: Array) -> Array:
        return jax.ops.segment_sum(x_B, group_ids_B, num_segments=groups)[group_ids_B]

    count_B = total(valid_B.astype(jnp.float32))
    mean_B = total(clean_B) / jnp.maximum(count_B, 1)
    deviation_B = jnp.where(valid_B, clean_B - mean_B, 0.0)
    std_B = jnp.sqrt(total(jnp.square(deviation_B)) / jnp.maximum(count_B - ddof, 1))
    highest_B = jax.ops.segment_max(
        jnp.where(valid_B, clean_B, -jnp.inf), group_ids_B, num_segments=groups
    )[group_ids_B]
    lowest_B = jax.ops.segment_min(
        jnp.where(valid_B, clean_B, jnp.inf), group_ids_B, num_segments=groups
    )[group_ids_B]
    return GroupStatistics(count_B, mean_B, std_B, ~(highest_B > lowest_B))


def spread_over_tokens(values_B: Array, trajectories: Trajectories) -> Array:
    """One value per sequence, on each of its response tokens and 0 elsewhere: float32 [B, T]."""
    return jnp.where(trajectories.response_mask_BT, values_B[:, None], 0.0)
