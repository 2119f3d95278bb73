"""Selection of tokens by their values, over a whole minibatch.

Tokens are chosen by value, not by position, and equal values are chosen together. Therefore padding
and the order of rows do not change a result.
"""

import jax.numpy as jnp

from rl4p.base.types import Array


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
