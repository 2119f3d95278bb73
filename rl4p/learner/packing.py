"""Packing: several sequences in a row, so that fewer columns are padding.

Tokens attend to tokens of the same segment only, and positions restart with every segment.
Therefore packing changes no log-probability. The weights of the loss are computed before, so it
does not change the loss either, by any aggregation.

`update.pack=true` packs a whole batch (`packed`), whose loss must be one of single tokens. The
responses of a group, behind their shared prompt, are packed among the rows of the group
(`Packing.of_groups`) for the forward pass alone: its log-probabilities go back into one row per
sequence, so the loss is as before.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Trajectories
from rl4p.distributed.partition import in_step
from rl4p.learner.microbatches import MicrobatchLoop, MicrobatchRows, cost_of, extents
from rl4p.model.attention import MOST_SEQUENCES


class Packing(NamedTuple):
    """The places of B sequences, which have a row each, in packed rows.

    Attributes:
      left_B, lengths_B: the first column and the number of columns of a sequence in its own row.
      rows_B: its packed row.
      starts_B: its first column there.
      numbers_B: its number among the sequences of that row.
    """

    left_B: Array
    lengths_B: Array
    rows_B: Array
    starts_B: Array
    numbers_B: Array

    @classmethod
    def of_groups(
        cls,
        segment_ids_BT: Array,
        group_size: int,
        loops: Sequence[MicrobatchLoop],
        cost: Callable[[Any], Any],
    ) -> Self:
        """Packs the sequences of each group by first fit into at most `group_size` rows.

        Tries several capacities (columns of a row): each width of the microbatches for all groups,
        and for each group the width that is cheapest for it alone. Keeps the candidate of the least
        cost. Devices that run in step choose the same one, which saves time. A row has at most
        `MOST_SEQUENCES` sequences.

        Args:
          group_size: the number of neighbouring rows that are a group.
          loops: the loops of `microbatches.fold` over the packed rows, each with a width.
          cost: returns the cost of rows from their widths in columns: float32, any shape.
        """
        # C capacities are tried for each of P groups of G sequences, all in one program.
        left_B, lengths_B = extents(segment_ids_BT)
        widths_C = jnp.asarray(sorted({loop.width for loop in loops}))
        of_groups = jax.vmap(jax.vmap(first_fit, (0, None)), (None, 0))
        places_CPG, used_CPG = of_groups(lengths_B.reshape(-1, group_size), widths_C)

        # A row costs the width of the loop that will run it, which is at least what it uses.
        widths_CPG = widths_C.at[jnp.searchsorted(widths_C, used_CPG)].get(mode="clip")
        cost_CPG = jnp.where(used_CPG > 0, cost(widths_CPG.astype(jnp.float32)), 0.0)
        # One more candidate: to each group the capacity that is cheapest for it alone. It may lose,
        # because rows of more widths leave more microbatches that are not full.
        of_each_P = jnp.argmin(jnp.sum(cost_CPG, axis=2), axis=0)
        groups_P = jnp.arange(len(of_each_P))
        places_CPG, used_CPG = jax.tree.map(
            lambda x: jnp.concatenate([x, x[of_each_P, groups_P][None]]), (places_CPG, used_CPG)
        )
        total = jax.vmap(lambda used_PG: cost_of(used_PG.reshape(-1), loops, cost))
        best = jnp.argmin(in_step(total(used_CPG)))
        rows_PG, starts_PG, numbers_PG = (x[best] for x in places_CPG)
        places_PG = rows_PG + group_size * groups_P[:, None], starts_PG, numbers_PG
        return cls(left_B, lengths_B, *(x.reshape(-1) for x in places_PG))

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
        """Returns the segment ids of packed rows, where no two sequences have the same."""
        B, T = segment_ids_BT.shape
        numbers_B1 = jnp.arange(B, dtype=segment_ids_BT.dtype)[:, None]
        own_BT = jnp.where(segment_ids_BT > 0, segment_ids_BT + numbers_B1 * (T + 1), 0)
        return self.pack(own_BT)

    def pack_trajectories(self, trajectories: Trajectories) -> Trajectories:
        """Packs the arrays [B, T] of trajectories; arrays [B] still have one entry per sequence.

        The prompt before a sequence belongs to its first segment. An episode whose history was
        rewritten has later segments too. Those get negative ids, so that they do not see the prompt
        (`attention.visible`).
        """
        segments_BT = trajectories.segment_ids_BT
        own_BT, later_BT = self.pack_segments(segments_BT), self.pack(segments_BT) > 1
        segment_ids_BT = jnp.where(later_BT, -own_BT, own_BT)
        return replace(self.pack(trajectories), segment_ids_BT=segment_ids_BT)

    def of_microbatch(
        self, at: MicrobatchRows, group_size: int
    ) -> tuple[MicrobatchRows, "Packing"]:
        """Returns the sequences in the packed rows at some positions.

        A row has places for `MOST_SEQUENCES` of them, or for a whole group if that is smaller.

        Returns:
          The position in the batch of the sequence at each place, outside of the batch at an empty
          one, and the packing whose `unpack` makes [places, T] of [rows, T].
        """
        B, most = len(self.rows_B), min(group_size, MOST_SEQUENCES)
        ids_BM = (
            jnp.full((B, most), B).at[self.rows_B, self.numbers_B].set(jnp.arange(B), mode="drop")
        )
        ids_n = ids_BM.at[at.rows_b].get(mode="fill", fill_value=B).reshape(-1)
        here = Packing(*(jnp.asarray(x).at[ids_n].get(mode="fill", fill_value=0) for x in self))
        rows_n = jnp.repeat(jnp.arange(len(at.rows_b)), most)
        places = here._replace(left_B=jnp.zeros_like(here.left_B), rows_B=rows_n)
        return MicrobatchRows(ids_n, here.left_B), places


def first_fit(
    lengths_B: Array, capacity: Array | int, most: int = MOST_SEQUENCES
) -> tuple[tuple[Array, Array, Array], Array]:
    """Places sequences into rows by first-fit decreasing: the longest first, each where it fits.

    A row has at most `most` sequences. One that is longer than the capacity has a row alone.

    Returns:
      The row of each sequence, its first column there and its number among the sequences of the
      row; and the columns of each row that are used.
    """
    order_B = jnp.argsort(-lengths_B)

    def place(rows: tuple[jax.Array, ...], sequence: jax.Array) -> tuple[Any, tuple[Array, ...]]:
        (used_B, count_B), length = rows, lengths_B[sequence]
        fits_B = (used_B + length <= capacity) & (count_B < most)
        row = jnp.argmax((used_B == 0) | fits_B)
        rows = used_B.at[row].add(length), count_B.at[row].add(1)
        return rows, (row, used_B[row], count_B[row])

    nothing_B = jnp.zeros_like(lengths_B)
    (used_B, _), in_order = jax.lax.scan(place, (nothing_B, nothing_B), order_B)
    rows_B, starts_B, numbers_B = (jnp.zeros_like(x).at[order_B].set(x) for x in in_order)
    return (rows_B, starts_B, numbers_B), used_B


def packed(batch: Any, segment_ids_BT: Array) -> tuple[Any, Array]:
    """Returns the batch with the sequences moved into as few rows as first-fit decreasing finds.

    The number of rows stays the same; the last ones become empty, and `microbatches.fold` skips
    them. Arrays [B] are not changed. The second result are the new segment ids, which differ
    between the sequences of a row.
    """
    (B, T), (left_B, lengths_B) = segment_ids_BT.shape, extents(segment_ids_BT)
    packing = Packing(left_B, lengths_B, *first_fit(lengths_B, T, most=B)[0])
    return packing.pack(batch), packing.pack_segments(segment_ids_BT)
