"""Masked reductions and group statistics, each defined once for the whole project.

All functions divide sums by counts, so a result does not depend on padding, on the order of rows,
or on the split into microbatches. Masks are applied with `where` before any operation that could
overflow, because ``nan * 0`` is nan.

Tokens are selected by value, not by position, and equal values together (`largest`), for the same
reason.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories


def masked_sum(values: Array, mask: Array) -> Array:
    """Returns the sum of the values where the mask is true."""
    return jnp.sum(jnp.where(mask, values, 0))


def loss_mask(trajectories: Trajectories, rewards: Rewards) -> Array:
    """Returns the response mask without invalid samples: bool [B, T]."""
    return trajectories.response_mask_BT & rewards.valid_B[:, None]


def response_lengths(trajectories: Trajectories) -> Array:
    """Returns the number of response tokens of each sequence: float32 [B]."""
    return jnp.sum(trajectories.response_mask_BT, axis=1, dtype=jnp.float32)


class MaskedStatistics(NamedTuple):
    """Scalar statistics of all values where a mask is true."""

    mean: Array
    std: Array
    equal: Array  # bool: fewer than two values, or all of them equal


def masked_statistics(values: Array, mask: Array, *, ddof: int = 0) -> MaskedStatistics:
    """Computes statistics over a mask of any shape; the deviation divides by count - ddof."""
    clean = jnp.where(mask, values, 0.0)
    count = jnp.sum(mask, dtype=jnp.float32)
    mean = jnp.sum(clean) / jnp.maximum(count, 1)
    squares = jnp.sum(jnp.where(mask, jnp.square(clean - mean), 0.0))
    highest = jnp.max(jnp.where(mask, clean, -jnp.inf))
    lowest = jnp.min(jnp.where(mask, clean, jnp.inf))
    return MaskedStatistics(
        mean, jnp.sqrt(squares / jnp.maximum(count - ddof, 1)), ~(highest > lowest)
    )


def whiten(values: Array, mask: Array, *, epsilon: float, ddof: int = 0) -> Array:
    """Returns (x - mean) / (std + epsilon) on the mask, else 0; all 0 if the values are equal."""
    mean, std, equal = masked_statistics(values, mask, ddof=ddof)
    return jnp.where(mask & ~equal, (values - mean) / (std + epsilon), 0.0)


def group_total(values_B: Array, group_ids_B: Array, groups: int | None = None) -> Array:
    """Returns, for each sample, the sum of the values over its group.

    Group ids are in [0, groups); `groups` is B by default.
    """
    groups = values_B.shape[0] if groups is None else groups
    return jax.ops.segment_sum(values_B, group_ids_B, num_segments=groups)[group_ids_B]


class GroupStatistics(NamedTuple):
    """Statistics over the valid samples of each group, repeated for every sample of the group.

    `highest_B` and `lowest_B` are 0 if the group has no valid sample.
    """

    count_B: Array  # number of valid samples in the group, float32
    mean_B: Array
    std_B: Array
    equal_B: Array  # bool: fewer than two valid samples, or all of them equal
    highest_B: Array
    lowest_B: Array
    difference_B: Array  # value - mean, exactly 0 for invalid samples and where `equal_B`


def group_statistics(
    values_B: Array, valid_B: Array, group_ids_B: Array, *, ddof: int = 0, groups: int | None = None
) -> GroupStatistics:
    """Computes the statistics of each group. Groups are found by id, not by position.

    `equal_B` compares the largest value with the smallest, so a group of equal rewards gets a
    difference of exactly 0, without the rounding error of r - mean(r).

    The values of invalid samples may be anything, even nan. Group ids are in [0, groups); `groups`
    is B by default. The deviation divides by count - ddof.
    """
    groups = values_B.shape[0] if groups is None else groups
    clean_B = jnp.where(valid_B, values_B, 0.0)
    count_B = group_total(valid_B.astype(jnp.float32), group_ids_B, groups)
    mean_B = group_total(clean_B, group_ids_B, groups) / jnp.maximum(count_B, 1)
    difference_B = jnp.where(valid_B, clean_B - mean_B, 0.0)
    squares_B = group_total(jnp.square(difference_B), group_ids_B, groups)
    std_B = jnp.sqrt(squares_B / jnp.maximum(count_B - ddof, 1))
    highest_B, lowest_B = (
        extreme(jnp.where(valid_B, clean_B, other), group_ids_B, num_segments=groups)[group_ids_B]
        for extreme, other in ((jax.ops.segment_max, -jnp.inf), (jax.ops.segment_min, jnp.inf))
    )
    equal_B, some_B = ~(highest_B > lowest_B), count_B > 0
    return GroupStatistics(
        count_B=count_B,
        mean_B=mean_B,
        std_B=std_B,
        equal_B=equal_B,
        highest_B=jnp.where(some_B, highest_B, 0.0),
        lowest_B=jnp.where(some_B, lowest_B, 0.0),
        difference_B=jnp.where(equal_B, 0.0, difference_B),
    )


def group_log_softmax(values_B: Array, valid_B: Array, group_ids_B: Array) -> Array:
    """Returns the log-softmax over the valid samples of each group; 0 for invalid samples."""
    group = group_statistics(values_B, valid_B, group_ids_B)
    shifted_B = jnp.where(valid_B, values_B - group.highest_B, 0.0)
    total_B = group_total(jnp.where(valid_B, jnp.exp(shifted_B), 0.0), group_ids_B)
    return jnp.where(valid_B, shifted_B - jnp.log(jnp.maximum(total_B, 1.0)), 0.0)


def spread_over_tokens(values_B: Array, trajectories: Trajectories) -> Array:
    """Copies the value of each sequence to its response tokens, 0 elsewhere: float32 [B, T]."""
    return jnp.where(trajectories.response_mask_BT, values_B[:, None], 0.0)


def token_rewards(trajectories: Trajectories, rewards: Rewards) -> Array:
    """Returns the reward that each token receives: float32 [B, T], 0 outside the loss mask.

    The last response token receives the part of the total that is not in `rewards.tokens_BT`.
    """
    mask_BT = loss_mask(trajectories, rewards)
    column = jnp.arange(mask_BT.shape[1])[None]
    last_BT = mask_BT & (column == jnp.max(jnp.where(mask_BT, column, -1), axis=1, keepdims=True))
    if rewards.tokens_BT is None:
        return jnp.where(last_BT, rewards.total_B[:, None], 0.0)
    tokens_BT = jnp.where(mask_BT, rewards.tokens_BT, 0.0)
    rest_B1 = rewards.total_B[:, None] - jnp.sum(tokens_BT, axis=1, keepdims=True)
    return tokens_BT + jnp.where(last_BT, rest_B1, 0.0)


def returns_to_go(trajectories: Trajectories, rewards: Rewards) -> Array:
    """Returns the undiscounted reward from token t on: float32 [B, T], 0 outside the loss mask.

    The result is the total minus all earlier rewards, so it is exactly the total if no token has a
    reward of its own.
    """
    mask_BT = loss_mask(trajectories, rewards)
    total_BT = jnp.where(mask_BT, rewards.total_B[:, None], 0.0)
    if rewards.tokens_BT is None:
        return total_BT
    tokens_BT = jnp.where(mask_BT, rewards.tokens_BT, 0.0)
    return jnp.where(mask_BT, total_BT - (jnp.cumsum(tokens_BT, axis=1) - tokens_BT), 0.0)


def share_count(mask_BT: Array, share: float) -> Array:
    """Returns how many tokens a share of the masked tokens is: rounded down, and at least one."""
    return jnp.maximum(jnp.floor(share * jnp.sum(mask_BT, dtype=jnp.float32)), 1).astype(jnp.int32)


def largest(values_BT: Array, candidates_BT: Array, count: Array) -> Array:
    """Returns the candidates with the `count` largest values: bool [B, T].

    Ties with the smallest chosen value are included, so there may be more than `count`. With fewer
    candidates, all are chosen. The values of other tokens may be anything, even nan.
    """
    ranked = jnp.sort(jnp.where(candidates_BT, values_BT, -jnp.inf).ravel(), descending=True)
    return candidates_BT & (values_BT >= ranked[jnp.clip(count - 1, 0, ranked.size - 1)])
