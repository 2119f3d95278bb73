"""Keys and values of tokens that a decoder has seen."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.types import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Cache:
    """Keys and values of all layers, with what tells which slots a token may see.

    Keys stand transposed: a row's scores are then a product with the cache as it lies.
    """

    layers: tuple[tuple[Array, Array], ...]  # L of ([B, K, h, S], [B, K, S, h])
    positions_BS: Array
    segment_ids_BS: Array  # 0 on slots not written

    def rows(self, rows_b: Array, slots: int) -> "Cache":
        """Some of its rows, with so many slots (as it has, or more)."""

        def take(x: Array, axis: int) -> jax.Array:
            more = [(0, 0)] * x.ndim
            more[axis] = (0, slots - x.shape[axis])
            return jnp.pad(jnp.take(x, rows_b, axis=0), more)

        return Cache(
            layers=tuple((take(k, 3), take(v, 2)) for k, v in self.layers),
            positions_BS=take(self.positions_BS, 1),
            segment_ids_BS=take(self.segment_ids_BS, 1),
        )


class Before(NamedTuple):
    """What rows begin with: keys and values of the tokens before theirs, from position 0 on."""

    layers: tuple[Array, ...]  # of all layers: [L, B, K, h, S], [L, B, K, S, h]
    segment_ids_BS: Array  # 0 behind the last

    @property
    def positions_BS(self) -> Array:  # noqa: N802
        places = jnp.arange(self.segment_ids_BS.shape[1], dtype=jnp.int32)
        return jnp.broadcast_to(places, self.segment_ids_BS.shape)


def write(cache: Array, new: Array, slot: Array | int, axis: int) -> Array:
    """New slots from `slot` on: one for all rows, or [B], of one token each, one for each row."""
    if jnp.ndim(slot) == 0:
        return jax.lax.dynamic_update_slice_in_dim(cache, new, slot, axis=axis)
    # Mapped over rows, and not indexed by them: devices that share the rows write each its own.
    return jax.vmap(partial(jax.lax.dynamic_update_slice_in_dim, axis=axis - 1))(cache, new, slot)
