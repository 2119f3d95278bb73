"""Packing: several sequences in a row, so that fewer columns are padding.

Tokens attend to tokens of the same segment only, and positions restart with every sequence.
Therefore packing changes no log-probability. The weights of the loss are computed before, so it
does not change the loss either, by any aggregation.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rl4p.learner.microbatches import extents
from rl4p.types import Array


def packed(batch: Any, segment_ids_BT: Array) -> tuple[Any, Array]:
    """Returns the batch with the sequences moved into as few rows as first-fit decreasing finds.

    The longest sequence is placed first, each into the first row with enough columns left. The
    number of rows stays the same; the last ones become empty, and `microbatches.fold` skips them.

    Args:
      batch: arrays [B, T], 0 where no sequence is moved to; arrays [B] are not changed.
      segment_ids_BT: the segment ids of the batch, 0 on padding.

    Returns:
      The packed batch, and its segment ids, which differ between the sequences of a row.
    """
    B, T = segment_ids_BT.shape
    left_B, lengths_B = extents(segment_ids_BT)
    order_B = jnp.argsort(-lengths_B)

    def place(free_B: jax.Array, sequence: jax.Array) -> tuple[jax.Array, tuple[Array, Array]]:
        length = lengths_B[sequence]
        row = jnp.argmax(free_B >= length)
        return free_B.at[row].add(-length), (row, T - free_B[row])

    _, (rows_B, starts_B) = jax.lax.scan(place, jnp.full(B, T, lengths_B.dtype), order_B)
    rows_B, starts_B = (jnp.zeros_like(x).at[order_B].set(x) for x in (rows_B, starts_B))
    places_BT = jnp.arange(T)[None] - left_B[:, None]
    inside_BT = (places_BT >= 0) & (places_BT < lengths_B[:, None])
    columns_BT = jnp.where(inside_BT, places_BT + starts_B[:, None], T)  # T: dropped

    def move(x: Array) -> Array:
        if x.ndim == 1:
            return x
        return jnp.zeros_like(x).at[rows_B[:, None], columns_BT].set(x, mode="drop")

    numbers_B1 = jnp.arange(B, dtype=segment_ids_BT.dtype)[:, None]
    own_BT = jnp.where(segment_ids_BT > 0, segment_ids_BT + numbers_B1 * (T + 1), 0)
    return jax.tree.map(move, batch), move(own_BT)
