"""Packing: several sequences in a row, so that fewer columns are padding.

Tokens attend to tokens of the same segment only, and positions restart with every sequence.
Therefore packing changes no log-probability. The weights of the loss are computed before, so it
does not change the loss either, by any aggregation.

A batch is packed as a whole (`packed`) if its loss needs no rows. The responses of a group, behind
their shared prompt, are packed among the rows of the group (`Packing.of_groups`) for the forward
pass alone: its log-probabilities go back into one row per sequence, so the loss is as before.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from rl4p.distributed.partition import in_step
from rl4p.learner.microbatches import MicrobatchLoop, MicrobatchRows, cost_of, extents
from rl4p.model.decoder_config import DecoderConfig
from rl4p.types import Array, Trajectories

ATTENTION_COST = 4  # of an operation of attention, beside one of the other products, on two cores


class Packing(NamedTuple):
    """The places of B sequences, which have a row each, in packed rows.

    Attributes:
      left_B, lengths_B: the first column and the number of columns of a sequence in its own row.
      rows_B: its packed row.
      starts_B: its first column there.
    """

    left_B: Array
    lengths_B: Array
    rows_B: Array
    starts_B: Array

    @classmethod
    def of_groups(
        cls, segment_ids_BT: Array, group_size: int, loops: tuple[MicrobatchLoop, ...], equal: float
    ) -> Self:
        """Packs the sequences of each group into rows of the group.

        The capacity of a row is one of the widths of the loops: that of all groups with the least
        cost, or for each group its own with the least columns, whichever costs less.

        Args:
          group_size: the number of neighbouring rows that are a group.
          loops: the loops of `microbatches.fold` over the packed rows.
          equal: `keys_that_cost_the_same`.
        """
        left_B, lengths_B = extents(segment_ids_BT)
        widths_C = jnp.asarray(sorted({loop.width for loop in loops}))
        of_groups = jax.vmap(jax.vmap(first_fit, (0, None)), (None, 0))
        places_CPG = of_groups(lengths_B.reshape(-1, group_size), widths_C)

        def cost(width: Any) -> Any:
            return width * (1 + width / (2 * equal))

        used_CPG = places_CPG[2]
        widths_CPG = widths_C.at[jnp.searchsorted(widths_C, used_CPG)].get(mode="clip")
        cost_CPG = jnp.where(used_CPG > 0, cost(widths_CPG.astype(jnp.float32)), 0.0)
        of_each_P = jnp.argmin(jnp.sum(cost_CPG, axis=2), axis=0)
        groups_P = jnp.arange(len(of_each_P))
        candidates = jax.tree.map(
            lambda x: jnp.concatenate([x, x[of_each_P, groups_P][None]]), places_CPG
        )
        total = jax.vmap(lambda used_PG: cost_of(used_PG.reshape(-1), loops, cost))
        best = jnp.argmin(in_step(total(candidates[2])))
        rows_PG, starts_PG, _ = jax.tree.map(lambda x: x[best], candidates)
        rows_PG = rows_PG + group_size * groups_P[:, None]
        return cls(left_B, lengths_B, rows_PG.reshape(-1), starts_PG.reshape(-1))

    def columns_BT(self, T: int) -> Array:  # noqa: N802
        """Returns the column of each token in its packed row; T outside the sequences."""
        places_BT = jnp.arange(T)[None] - self.left_B[:, None]
        inside_BT = (places_BT >= 0) & (places_BT < self.lengths_B[:, None])
        return jnp.where(inside_BT, places_BT + self.starts_B[:, None], T)

    def pack(self, batch: Any) -> Any:
        """Returns arrays [B, T] of packed rows, 0 outside sequences; [B] are not changed."""

        def move(x: Array) -> Array:
            if x.ndim == 1:
                return x
            place = self.rows_B[:, None], self.columns_BT(x.shape[1])
            return jnp.zeros_like(x).at[place].set(x, mode="drop")

        return jax.tree.map(move, batch)

    def unpack(self, x_BT: Array) -> Array:
        """Returns [B, T] of sequences from that of packed rows, 0 outside them."""
        place = self.rows_B[:, None], self.columns_BT(x_BT.shape[1])
        return jnp.asarray(x_BT).at[place].get(mode="fill", fill_value=0)

    def pack_segments(self, segment_ids_BT: Array) -> Array:
        """Returns the segment ids of packed rows, which differ between their sequences."""
        B, T = segment_ids_BT.shape
        numbers_B1 = jnp.arange(B, dtype=segment_ids_BT.dtype)[:, None]
        own_BT = jnp.where(segment_ids_BT > 0, segment_ids_BT + numbers_B1 * (T + 1), 0)
        return self.pack(own_BT)

    def pack_trajectories(self, trajectories: Trajectories) -> Trajectories:
        """Returns the packed rows of trajectories; only the arrays [B, T] are those of its rows."""
        segment_ids_BT = self.pack_segments(trajectories.segment_ids_BT)
        return replace(self.pack(trajectories), segment_ids_BT=segment_ids_BT)

    def of_microbatch(self, at: MicrobatchRows, group_size: int) -> tuple[MicrobatchRows, Self]:
        """Returns the sequences that may be in b packed rows: all n = b G of their groups.

        Args:
          at: the positions of the packed rows.

        Returns:
          The positions of the sequences in the batch, outside of it for those in other rows, and
          their places in the rows of the microbatch, where a sequence taken by its position begins
          in column 0.
        """
        B, rows_b1 = len(self.rows_B), jnp.asarray(at.rows_b)[:, None]
        ids_bG = rows_b1 // group_size * group_size + jnp.arange(group_size)[None]
        rows_bG = jnp.asarray(self.rows_B).at[ids_bG].get(mode="fill", fill_value=-1)
        ids_n = jnp.where(rows_bG == rows_b1, ids_bG, B).reshape(-1)
        left_n, lengths_n, starts_n = (
            jnp.asarray(x).at[ids_n].get(mode="fill", fill_value=0)
            for x in (self.left_B, self.lengths_B, self.starts_B)
        )
        rows_n = jnp.repeat(jnp.arange(len(rows_b1)), group_size)
        places = type(self)(jnp.zeros_like(left_n), lengths_n, rows_n, starts_n)
        return MicrobatchRows(ids_n, left_n), places


def first_fit(lengths_B: Array, capacity: Array) -> tuple[Array, Array, Array]:
    """Places sequences into rows by first-fit decreasing: the longest first, each where it fits.

    A sequence that is longer than the capacity has a row alone.

    Returns:
      The row of each sequence, its first column there, and the used columns of each row.
    """
    order_B = jnp.argsort(-lengths_B)

    def place(used_B: jax.Array, sequence: jax.Array) -> tuple[jax.Array, tuple[Array, Array]]:
        length = lengths_B[sequence]
        row = jnp.argmax((used_B == 0) | (used_B + length <= capacity))
        return used_B.at[row].add(length), (row, used_B[row])

    used_B, (rows_B, starts_B) = jax.lax.scan(place, jnp.zeros_like(lengths_B), order_B)
    rows_B, starts_B = (jnp.zeros_like(x).at[order_B].set(x) for x in (rows_B, starts_B))
    return rows_B, starts_B, used_B


def keys_that_cost_the_same(c: DecoderConfig) -> float:
    """Returns for how many keys the attention of a token costs as much as its other products.

    An operation of attention costs more than one of a product (`ATTENTION_COST`): it has the
    softmax, and small products.
    """
    projections = 2 * c.width * c.head_width * (c.heads + c.num_kv_heads)
    feed_forward = 3 * c.width * c.feed_forward_width * max(1, c.chosen_experts)
    return (projections + feed_forward) / (2 * c.heads * c.head_width * ATTENTION_COST)


def packed(batch: Any, segment_ids_BT: Array) -> tuple[Any, Array]:
    """Returns the batch with the sequences moved into as few rows as first-fit decreasing finds.

    The number of rows stays the same; the last ones become empty, and `microbatches.fold` skips
    them.

    Args:
      batch: arrays [B, T], 0 where no sequence is moved to; arrays [B] are not changed.
      segment_ids_BT: the segment ids of the batch, 0 on padding.

    Returns:
      The packed batch, and its segment ids, which differ between the sequences of a row.
    """
    left_B, lengths_B = extents(segment_ids_BT)
    rows_B, starts_B, _ = first_fit(lengths_B, jnp.int32(segment_ids_BT.shape[1]))
    packing = Packing(left_B, lengths_B, rows_B, starts_B)
    return packing.pack(batch), packing.pack_segments(segment_ids_BT)
