"""Microbatches of rows of similar length: little padding, and one program for all lengths.

Rows are sorted by length, the longest first, and run in loops of a few shapes (rows x width), here
with at most 2048 tokens:

    loops     2 x 1024    2 x 768    3 x 576    ...    16 x 128
    lengths   900 610     590 300    -                 120 80 ...

A loop runs while rows are left that are too long for the next one. Each of its microbatches takes
the next rows, also shorter ones. The shapes are static, and only the numbers of iterations depend
on the data, so one program serves all lengths.

The first trap: devices that gather parameters do so within an iteration, and would wait for ever
for one that has left the loop. So all make as many iterations as the device with the most wide rows
(`in_step`). The second: a microbatch may reach beyond the last row. Such a place has the row number
B, which reads 0 and is never written (a negative number would count from the end).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Microbatching, Params
from rl4p.distributed import collectives
from rl4p.distributed.collectives import ROWS, on_rows
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import in_step


class MicrobatchRows(NamedTuple):
    """The positions of a microbatch's rows in their batch: row numbers and first columns."""

    rows_b: Array  # B for a row that only pads the microbatch
    left_b: Array

    def take(self, x: Array, width: int) -> jax.Array:
        """Returns the rows' part [b, width] of [B, T], or [b] of [B]; 0 outside the batch."""
        if x.ndim == 1:
            return jnp.asarray(x).at[self.rows_b].get(mode="fill", fill_value=0)
        columns = self.left_b[:, None] + jnp.arange(width)[None]
        return jnp.asarray(x).at[self.rows_b[:, None], columns].get(mode="fill", fill_value=0)

    def put(self, x_BT: Array, part: Array) -> jax.Array:
        """Returns [B, T] with these rows replaced by `part` [b, width]."""
        columns = self.left_b[:, None] + jnp.arange(part.shape[1])[None]
        return jnp.asarray(x_BT).at[self.rows_b[:, None], columns].set(part, mode="drop")


class MicrobatchLoop(NamedTuple):
    """A loop over the microbatches of one shape.

    Attributes:
      width, rows: the shape of a microbatch.
      narrower: the width of the next narrower loop, which runs the rows of at most this length; 0
        if there is none.
      least: it runs another microbatch while at least this many wider rows are left.
    """

    width: int
    rows: int
    narrower: int
    least: int


def fold(
    add: Callable[[Any, Any, MicrobatchRows], Any],
    start: Any,
    batch: Any,
    segment_ids_BT: Array,
    microbatching: Microbatching,
    *,
    together: int = 1,
    packed: bool = False,
) -> Any:
    """Folds `add` over the microbatches of a batch, longest rows first, beginning with `start`.

    A microbatch has one of a few shapes (`loops`). Each shape has its own loop, and only the
    number of its iterations depends on the lengths in the batch, so new lengths need no
    compilation. The rows of a microbatch begin at their first token, so columns of padding on
    either side cost nothing. Devices along `cp` divide the width of a microbatch evenly.

    Args:
      add: maps (value, microbatch, rows) to a new value; `fold` itself is not differentiable.
      batch: arrays [B, T] or [B], of which `add` sees [b, width] or [b].
      together: the number of neighbouring rows that stay in one microbatch.
      packed: as of `loops`.
    """
    B, T = segment_ids_BT.shape
    left_B, lengths_B = extents(segment_ids_BT)
    longest = jnp.max(lengths_B.reshape(-1, together), axis=1)
    # [blocks, together]: blocks of neighbours by their longest row, the longest first.
    order_B = jnp.argsort(-longest)[:, None] * together + jnp.arange(together)[None]
    order_B = order_B.reshape(-1)
    carry = jnp.int32(0), start  # the number of rows that are done, and the value
    for index, loop in enumerate(loops(B, T, microbatching, together, packed=packed)):
        # All devices must make the same number of iterations where they exchange parameters within
        # one (`in_step`): a device with fewer wide rows runs rows of a narrower loop here.
        wide = in_step(jnp.sum(longest > loop.narrower) * together)
        end = wide - loop.least + 1

        def turn(carry: Any, loop: MicrobatchLoop = loop) -> Any:
            done, value = carry
            # The last microbatch may reach beyond the batch: row B reads 0 and is never written.
            ids_b = done + jnp.arange(loop.rows)
            rows_b = jnp.where(ids_b < B, order_B[jnp.minimum(ids_b, B - 1)], B)
            rows = MicrobatchRows(rows_b, left_B[jnp.minimum(rows_b, B - 1)])
            part = jax.tree.map(lambda x: rows.take(x, loop.width), batch)
            return done + loop.rows, add(value, part, rows)

        # Only the widest loop runs all rows if they have full length (`max_iterations`).
        most = 0 if index else -(-B // loop.rows)
        with jax.named_scope(f"microbatches_{loop.rows}x{loop.width}_most_{most}"):
            carry = jax.lax.while_loop(lambda carry, end=end: carry[0] < end, turn, carry)
    return carry[1]


def add_gradient(
    back: Any, cotangent: Any, total: Params, *others: Any, in_place: bool
) -> tuple[Any, ...]:
    """Adds a gradient of parameters to a total.

    Args:
      back: the function that `jax.vjp` returns, of the parameters and any `others`.
      cotangent: the argument of `back`.
      total: the gradient of the parameters so far.
      others: the other arguments of the differentiated function.
      in_place: adds layer by layer, so that no second tree is in memory. The trap: if a scan takes
        some parameters as they are and a function of others, JAX 0.10 gives their references
        the gradients of one another (`adds_in_place`).

    Returns:
      The new total, and the gradients of the `others`.
    """
    if not in_place:
        gradient, *gradients = back(cotangent)
        return jax.tree.map(jnp.add, total, gradient), *gradients
    refs = jax.tree.map(jax.new_ref, total)
    new = jax.tree.map(lambda _: False, others)  # any leaf but a reference asks for a new array
    _, *gradients = back.with_refs(refs, *new)(cotangent)
    return jax.tree.map(jax.freeze, refs), *gradients


def loops(
    B: int, T: int, microbatching: Microbatching, together: int = 1, *, packed: bool = False
) -> tuple[MicrobatchLoop, ...]:
    """Returns the loops of `fold` for rows [B, T], widest first: at most `microbatching.widths`.

    Args:
      packed: whether the rows are packed, so that most of the B rows are empty. There are half as
        many widths then, each with two loops: one of full microbatches, and one of microbatches
        with a quarter of the rows for those that are left.
    """
    devices = collectives.devices()
    each = widths(T, microbatching.widths)
    several = packed and len(each) > 1
    each = each[: len(each) // 2] if several else each
    each = tuple(-(-x // devices) * devices for x in each)
    shapes = []
    for width, narrower in zip(each, (*each[1:], 0), strict=True):
        rows = rows_in(B, width // devices, microbatching.tokens, together)
        few = -(-rows // (4 * together)) * together
        if several and few < rows:
            shapes.append(MicrobatchLoop(width, rows, narrower, rows - few + 1))
            rows = few
        shapes.append(MicrobatchLoop(width, rows, narrower, 1))
    return tuple(shapes)


def cost_of(
    lengths_B: Array, all_loops: Sequence[MicrobatchLoop], cost: Callable[[int], float]
) -> Array:
    """Returns what the loops cost for rows of these lengths; `cost` is that of a row of a width."""
    done, total = jnp.int32(0), jnp.float32(0)
    for loop in all_loops:
        left = jnp.sum(lengths_B > loop.narrower) - done
        turns = jnp.maximum((left - loop.least) // loop.rows + 1, 0)
        done += turns * loop.rows
        total += turns.astype(jnp.float32) * (loop.rows * cost(loop.width))
    return total


def max_iterations(scope: str) -> int | None:
    """Returns the iterations of the loop of `fold` with this scope, if all rows have full length.

    Returns None if the scope does not belong to a loop of `fold`.
    """
    match = re.search(r"microbatches_\d+x\d+_most_(\d+)(?:/while)?$", scope)
    return None if match is None else int(match[1])


def extents(segment_ids_BT: Array) -> tuple[Array, Array]:
    """Returns the column of each row's first token, and the number of columns to its last token."""
    real_BT = segment_ids_BT != 0
    left_B = jnp.argmax(real_BT, axis=1)
    columns = jnp.arange(real_BT.shape[1])[None]
    return left_B, jnp.max(jnp.where(real_BT, columns + 1, 0), axis=1) - left_B


def spread(
    function: Callable[[Any, Any], Any],
    shared: Any,
    rows: Any,
    segment_ids_BT: Array,
    mesh: Mesh,
    *,
    together: int = 1,
    results: Any = ROWS,
) -> Any:
    """Calls function(shared, rows) on each device with rows of about as many tokens.

    Args:
      shared, results: as in `collectives.on_rows`.
      rows: arrays [B, ...]; rows that pad a device are 0.
      together: the number of neighbouring rows that stay on one device.

    Returns:
      The results; arrays [B, ...] in the order of the rows if `results` is `ROWS`.
    """
    if mesh.row_shards == 1:
        return on_rows(mesh, function, shared, rows, results=results)
    B, rows_b = segment_ids_BT.shape[0], deal(segment_ids_BT, mesh.row_shards, together)
    spread_results = on_rows(mesh, function, shared, rows_of(rows, rows_b), results=results)
    return scattered(spread_results, rows_b, B) if results is ROWS else spread_results


def scattered(rows: Any, rows_b: Array, B: int) -> Any:
    """Returns arrays [B, ...] that hold the given rows at `rows_b`, the reverse of `rows_of`."""
    return jax.tree.map(
        lambda x: jnp.zeros((B, *x.shape[1:]), x.dtype).at[rows_b].set(x, mode="drop"), rows
    )


def deal(segment_ids_BT: Array, devices: int, together: int = 1) -> Array:
    """Deals blocks of rows to the devices, blocks with the most tokens first.

    Returns the row numbers of the first device, then of the next. Every second round runs in
    reverse order, so that devices get similar numbers of tokens. Row numbers >= B pad the devices
    to the same number of rows.
    """
    tokens = jnp.sum(extents(segment_ids_BT)[1].reshape(-1, together), axis=1)
    blocks = tokens.shape[0]
    order = jnp.pad(jnp.argsort(-tokens), (0, -blocks % devices), constant_values=blocks)
    rounds = order.reshape(-1, devices)
    rounds = rounds.at[1::2].set(rounds[1::2, ::-1])
    rows = rounds.T.reshape(-1, 1) * together + jnp.arange(together)[None]
    return rows.reshape(-1)


def rows_of(batch: Any, rows_b: Array) -> Any:
    """Returns the given rows of arrays [B, ...]; zeros for row numbers outside the batch."""
    return jax.tree.map(lambda x: x.at[rows_b].get(mode="fill", fill_value=0), batch)


def widths(T: int, most: int) -> tuple[int, ...]:
    """Returns T and multiples of 16, each about 3/4 of the previous: at most `most`.

    They are at least 48; among 256 columns or more, where very short rows are common, at least 16.
    """
    chosen, least = [T], 48 if T < 256 else 16
    while len(chosen) < most:
        narrower = (3 * chosen[-1] + 31) // 64 * 16
        if not least <= narrower < chosen[-1]:
            break
        chosen.append(narrower)
    return tuple(chosen)


def rows_in(rows: int, width: int, tokens: int, block: int = 1) -> int:
    """Returns how many rows of this width a microbatch has: whole blocks, at least one.

    The fewest microbatches that hold all rows have similar numbers of them, so that few rows of the
    last one are padding.
    """
    blocks, most = -(-rows // block), max(1, tokens // (width * block))
    microbatches = -(-blocks // most)
    return -(-blocks // microbatches) * block
