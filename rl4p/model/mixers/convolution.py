"""The short causal convolution, each channel by itself, within the sequences of packed rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array


def causal_convolution(
    x_BTC: Array,
    kernel_Ck: Array,
    segments_BT: Array,
    inputs_BCk: Array | None = None,
    bias_C: Array | None = None,
) -> tuple[Array, Array]:
    """Returns the convolution of each sequence, and the inputs that it needs to go on.

        y_t = b + sum_j kernel_j x_(t - k + 1 + j)        j from 0 to k - 1

    Here x_(t - 1) is the token of the same sequence before t, wherever padding (segment 0) lies,
    and 0 before the first one. It adds up in float32. The results at padding mean nothing.

    Args:
      kernel_Ck: the last column is the factor of the token itself.
      inputs_BCk: the last k - 1 tokens [B, C, k - 1] of the sequence that a row goes on with; None
        if all sequences begin here.

    Returns:
      y [B, T, C] in the dtype of x, and the last k - 1 tokens of the sequence at the end of each
      row, as in `inputs_BCk`.
    """
    width, kernel_Ck = kernel_Ck.shape[1], kernel_Ck.astype(jnp.float32)
    if inputs_BCk is None:
        earlier, x_BSC = 0, x_BTC
    elif x_BTC.shape[1] == 1:
        return one_step(x_BTC, kernel_Ck, segments_BT, inputs_BCk, bias_C)
    else:
        earlier = width - 1
        x_BSC = jnp.concatenate([inputs_BCk.swapaxes(1, 2).astype(x_BTC.dtype), x_BTC], axis=1)
    beside = neighbours(segments_BT, earlier)
    before_BS, after_BS, start_BS, own_BS = beside

    # A token's source is the column that its sum takes; a column's target is the token whose sum
    # takes it. Both are -1 where there is none.
    y_BTC = x_BTC.astype(jnp.float32) * jnp.broadcast_to(kernel_Ck[:, -1], x_BTC.shape)
    source_BS = target_BS = jnp.broadcast_to(jnp.arange(x_BSC.shape[1]), own_BS.shape)
    for place in reversed(range(width - 1)):
        source_BS, target_BS = at(before_BS, source_BS), at(after_BS, target_BS)
        takes_BS = own_BS & (source_BS >= start_BS)
        taken_BS = own_BS & (target_BS >= earlier) & (at(start_BS, target_BS) == start_BS)
        moved_BTC = move(
            x_BSC,
            jnp.where(takes_BS, source_BS, -1)[:, earlier:],
            jnp.where(taken_BS, target_BS - earlier, -1),
        )
        y_BTC += moved_BTC.astype(jnp.float32) * jnp.broadcast_to(kernel_Ck[:, place], y_BTC.shape)
    if bias_C is not None:
        y_BTC += jnp.broadcast_to(bias_C.astype(jnp.float32), y_BTC.shape)
    lasts = last_inputs(x_BSC, beside, width - 1)
    dtype = x_BTC.dtype if inputs_BCk is None else inputs_BCk.dtype
    return y_BTC.astype(x_BTC.dtype), lasts.astype(dtype)


def one_step(
    x_B1C: Array, kernel_Ck: Array, segments_B1: Array, inputs_BCk: Array, bias_C: Array | None
) -> tuple[Array, Array]:
    """Returns `causal_convolution` of one more token of each row."""
    new_BC1 = x_B1C.swapaxes(1, 2).astype(inputs_BCk.dtype)
    window_BCk = jnp.concatenate([inputs_BCk, new_BC1], axis=2)
    terms_BCk = window_BCk.astype(jnp.float32) * jnp.broadcast_to(kernel_Ck, window_BCk.shape)
    y_B1C = jnp.sum(terms_BCk, axis=2)[:, None]
    if bias_C is not None:
        y_B1C += jnp.broadcast_to(bias_C.astype(jnp.float32), y_B1C.shape)
    inputs = jnp.where(segments_B1[:, :, None] != 0, window_BCk[:, :, 1:], inputs_BCk)
    return y_B1C.astype(x_B1C.dtype), inputs


class Neighbours(NamedTuple):
    """Which columns [B, S] lie beside each in its sequence; -1 stands for none.

    Attributes:
      before_BS, after_BS: the next column with a token, of whatever sequence, on either side.
      start_BS: the first column of the sequence.
      own_BS: whether the column has a token.
    """

    before_BS: Array
    after_BS: Array
    start_BS: Array
    own_BS: Array


def neighbours(segments_BT: Array, earlier: int) -> Neighbours:
    """Returns the neighbours of columns, with so many of the first sequence put before them."""
    first_B1 = jnp.take_along_axis(
        segments_BT, jnp.argmax(segments_BT != 0, axis=1, keepdims=True), axis=1
    )
    # An empty row keeps its inputs, so they are those of some sequence.
    first_B1 = jnp.where(first_B1 == 0, 1, first_B1)
    earlier_Bm = jnp.broadcast_to(first_B1, (len(segments_BT), earlier))
    segments_BS = jnp.concatenate([earlier_Bm, segments_BT], axis=1)
    own_BS, S = segments_BS != 0, segments_BS.shape[1]
    places_BS = jnp.broadcast_to(jnp.arange(S), segments_BS.shape)
    until_BS = jax.lax.cummax(jnp.where(own_BS, places_BS, -1), axis=1)
    before_BS = jnp.pad(until_BS[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    from_BS = jax.lax.cummin(jnp.where(own_BS, places_BS, S), axis=1, reverse=True)
    after_BS = jnp.pad(from_BS[:, 1:], ((0, 0), (0, 1)), constant_values=S)
    after_BS = jnp.where(after_BS == S, -1, after_BS)
    begins_BS = own_BS & ((before_BS < 0) | (at(segments_BS, before_BS) != segments_BS))
    start_BS = jax.lax.cummax(jnp.where(begins_BS, places_BS, -1), axis=1)
    return Neighbours(before_BS, after_BS, start_BS, own_BS)


def last_inputs(x_BSC: Array, beside: Neighbours, count: int) -> Array:
    """Returns the last tokens [B, C, count] of the sequence at the end of each row."""
    places_BS = jnp.arange(x_BSC.shape[1])
    last_B1 = jnp.max(jnp.where(beside.own_BS, places_BS, -1), axis=1, keepdims=True)
    lasts: list[Array] = [last_B1]
    for _ in range(count - 1):
        lasts.append(at(beside.before_BS, lasts[-1]))
    last_Bk = jnp.concatenate(lasts[::-1], axis=1)
    inside_Bk = last_Bk >= at(beside.start_BS, last_B1)
    return columns(x_BSC, jnp.where(inside_Bk, last_Bk, -1)).swapaxes(1, 2)


def at(numbers_BS: Array, index_BT: Array) -> Array:
    """Returns the numbers at an index; -1 at -1."""
    found_BT = jnp.take_along_axis(numbers_BS, jnp.maximum(index_BT, 0), axis=1)
    return jnp.where(index_BT < 0, -1, found_BT)


def columns(x_BSC: Array, index_BT: Array) -> Array:
    """Returns columns [B, T, C] of x; zeros at -1."""
    found_BTC = jnp.take_along_axis(x_BSC, jnp.maximum(index_BT, 0)[:, :, None], axis=1)
    return jnp.where(index_BT[:, :, None] < 0, 0, found_BTC)


@jax.custom_vjp
def move(x_BSC: Array, source_BT: Array, target_BS: Array) -> Array:
    """Returns x at the source of each token.

    The targets are the inverse, so the gradient is read there. JAX would add it up at the sources,
    which on GPUs is slow and not the same twice.
    """
    return columns(x_BSC, source_BT)


move.defvjp(
    lambda x, source, target: (columns(x, source), target),
    lambda target, dy: (columns(dy, target), None, None),
)


def fresh_windows(key: Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns kernels [C, 1, k], uniform up to the root of 1 / k, as torch draws them."""
    limit = shape[-1] ** -0.5
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def sequence_numbers(segments_BT: Array) -> Array:
    """Returns the number of the sequence of each column in its row; the first has the number 0.

    Padding belongs to the sequence before it.
    """
    beside = neighbours(segments_BT, 0)
    places_BT = jnp.broadcast_to(jnp.arange(segments_BT.shape[1]), segments_BT.shape)
    begins_BT = beside.own_BS & (beside.start_BS == places_BT) & (beside.before_BS >= 0)
    return jnp.cumsum(begins_BT, axis=1, dtype=jnp.int32)
