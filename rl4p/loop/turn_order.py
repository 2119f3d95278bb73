"""The order of time in rows whose turns alternate between conversations."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Episode

Tree = TypeVar("Tree")


def time_order(mask_BT: np.ndarray, episodes: Sequence[Episode]) -> np.ndarray | None:
    """Returns the columns of each row in the order of time: int32 [B, T].

    A row has the segments of an episode one after the other. The result has its turns as they
    ended, each after a column of a token that the policy did not choose, which separates it from
    the turn before. Other columns come first. Returns None if all rows are in the order of time.

    Args:
      mask_BT: the response mask.
    """
    rows = [b for b, x in enumerate(episodes) if any(turn.start is not None for turn in x.turns)]
    if not rows:
        return None
    B, T = mask_BT.shape
    order_BT = np.tile(np.arange(T, dtype=np.int32), (B, 1))
    for row in rows:
        chosen, others = np.flatnonzero(mask_BT[row]), np.flatnonzero(~mask_BT[row]).tolist()
        in_time = [
            column
            for place in episodes[row].turn_places
            for column in (*([others.pop()] if others else []), *chosen[place].tolist())
        ]
        if len(others) + len(in_time) == T:  # no part of the loop has changed the mask
            order_BT[row] = [*others, *in_time]
    return order_BT


def reordered(tree: Tree, order_BT: Array | None) -> Tree:
    """Returns a tree whose arrays [B, T] have their columns in another order, which may be None."""
    return tree if order_BT is None else _reordered(tree, order_BT)


@jax.jit
def _reordered(tree: Any, order_BT: Array) -> Any:
    return jax.tree.map(
        lambda x: jnp.take_along_axis(x, order_BT, 1) if x.shape == order_BT.shape else x, tree
    )
