"""A TPU kernel that writes one column to each row of a cache, in place.

The compiler makes a loop over the rows of such a write, with several microseconds for each row, in
the keys and in the values of each layer. The kernel reads and writes one tile of each row, and it
reads the next row while it writes.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import tpu
from jax.sharding import PartitionSpec

from rl4p.base.types import Array
from rl4p.distributed.mesh import ROW_AXES, Mesh

LANES, SUBLANES = 128, 16  # of a tile: the last axis of an array, and the one before, in bfloat16


def write_columns(
    cache: Array, new: Array, slot_B: Array, axis: int, mesh: Mesh, *, interpret: bool = False
) -> jax.Array:
    """Writes a column of each row at the row's own slot.

    Args:
      cache: [B, K, h, S] or [B, K, S, h], or [B, S] (numbers, of which there are few).
      new: of the same shape, with one slot.
      slot_B: int32, clipped to the cache.
      axis: the axis of the slots.
      mesh: the mesh that the rows and heads are sharded over.
    """
    S = cache.shape[axis]
    slot_B = jnp.clip(slot_B, 0, S - 1)
    if cache.ndim == 2:
        return jnp.where(jnp.arange(S)[None] == slot_B[:, None], new, cache)
    run = partial(of_device, axis=axis, interpret=interpret)
    if mesh.size == 1:
        return run(cache, new, slot_B)
    rows, heads = PartitionSpec(ROW_AXES), PartitionSpec(ROW_AXES, "tp")
    # The compiler cannot divide a kernel.
    divided = jax.shard_map(
        run,
        mesh=mesh.devices,
        in_specs=(heads, heads, rows),
        out_specs=heads,
        check_vma=False,
    )
    return divided(cache, new, slot_B)


def of_device(cache: Array, new: Array, slot_B: Array, *, axis: int, interpret: bool) -> jax.Array:
    """Writes the columns of the rows and heads of one device."""
    B, K, *_ = cache.shape
    if axis == 2 and cache.shape[3] % LANES:  # the last axis is padded to whole tiles: take S
        swapped = jnp.swapaxes(cache, 2, 3), jnp.swapaxes(new, 2, 3)
        return jnp.swapaxes(of_device(*swapped, slot_B, axis=3, interpret=interpret), 2, 3)
    h, S = cache.shape[5 - axis], cache.shape[axis]
    width = min(S, LANES if axis == 3 else SUBLANES)
    shape = (1, K, h, width) if axis == 3 else (1, K, width, h)

    def tile(row: Array, slot_B: Array) -> tuple[Array | int, ...]:
        index = jax.lax.div(slot_B[row], jnp.int32(width))
        return (row, 0, 0, index) if axis == 3 else (row, 0, index, 0)

    def write_row(slot_B: Array, new: Array, old: Array, out: Array) -> None:
        place = jax.lax.rem(slot_B[pallas.program_id(0)], jnp.int32(width))
        here = jax.lax.broadcasted_iota(jnp.int32, shape, axis) == place
        column = jnp.broadcast_to(new[...].astype(jnp.float32), (1, K, width, h))
        column = jnp.swapaxes(column, 2, 3) if axis == 3 else column
        # In float32, because older chips cannot select in bfloat16.
        out[...] = jnp.where(here, column, old[...].astype(jnp.float32)).astype(out.dtype)

    old = pallas.BlockSpec(shape, tile)
    call = pallas.pallas_call(
        write_row,
        out_shape=jax.ShapeDtypeStruct(cache.shape, cache.dtype),
        grid_spec=tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(B,),
            in_specs=[pallas.BlockSpec((1, K, 1, h), lambda row, _: (row, 0, 0, 0)), old],
            out_specs=old,
        ),
        input_output_aliases={2: 0},
        interpret=interpret,
    )
    return call(slot_B, new.reshape(B, K, 1, h), cache)
