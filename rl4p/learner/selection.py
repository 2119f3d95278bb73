"""Selection of tokens by their value, over a whole minibatch.

A token is chosen by what its value is and never by where it stands: ties are chosen together, so
that neither padding nor the order of rows changes a result.
"""

import jax.numpy as jnp

from rl4p.types import Array


def share_count(mask_BT: Array, share: float) -> Array:
    """How many tokens a share of those in the mask is: rounded down, and at least one."""
    return jnp.maximum(jnp.floor(share * jnp.sum(mask_BT, dtype=jnp.float32)), 1).astype(jnp.int32)


def largest(values_BT: Array, candidates_BT: Array, count: Array) -> Array:
    """The candidates with the `count` largest values: bool [B, T].

    Ties with the smallest of them are in, so that there may be more; where there are fewer
    candidates, all of them are. Values that are no candidates may hold anything, nan too.
    """
    ranked = jnp.sort(jnp.where(candidates_BT, values_BT, -jnp.inf).ravel(), descending=True)
    return candidates_BT & (values_BT >= ranked[jnp.clip(count - 1, 0, ranked.size - 1)])
