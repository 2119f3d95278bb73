"""Running sums of decays whose differences keep their digits."""

import jax
import jax.numpy as jnp

from rl4p.base.types import Array

UNIT = 2.0**-10
LEAST = -128.0  # its exponential is 0


def running_sums(logs: Array) -> Array:
    """Returns the running sums [2, ...] of logarithms of decays over the last axis, in two parts.

    A float32 sum such as -1000 has no place for the fourth digit behind the point, which the decay
    of the next token needs. So the first part adds up multiples of `UNIT`, which is exact for at
    most 128 of them, and the second part adds up the small rests.
    """
    logs = jnp.maximum(logs, LEAST)
    multiples = jax.lax.stop_gradient(jnp.round(logs / UNIT) * UNIT)
    return jnp.cumsum(jnp.stack([multiples, logs - multiples]), axis=-1)


def between(sums: Array, same: Array) -> Array:
    """Returns what is left [..., C, C] of each token (column) at itself and each later one (row).

    On the diagonal it is a constant: the gradients of two equal sums would cancel but for rounding.

    Args:
      sums: of decays (`running_sums`), [2, ..., C].
      same: whether two tokens have the same sequence; nothing is left of another.
    """
    parts = sums[..., :, None] - sums[..., None, :]
    earlier = jnp.tril(jnp.ones(parts.shape[1:], bool), -1)
    # Before the exponential: between a later token and an earlier one it may overflow.
    left = jnp.exp(jnp.where(same & earlier, parts[0] + parts[1], -jnp.inf))
    return left + jnp.broadcast_to(jnp.eye(left.shape[-1]), left.shape)
