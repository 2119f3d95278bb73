"""The caches of tokens that a decoder has processed, and the writes to keys and values.

On a TPU, a kernel writes one column to each row in place (`write_columns`). The compiler makes a
loop over the rows of such a write, with several microseconds for each row, in the keys and in the
values of each layer. The kernel reads and writes one tile of each row, and it reads the next row
while it writes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import tpu
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.base.types import Array
from rl4p.distributed.mesh import ROW_AXES, Mesh, SamplingMesh

LANES, SUBLANES = 128, 16  # of a tile: the last axis of an array, and the one before, in bfloat16


def write_columns(
    cache: Array, new: Array, slot_B: Array, axis: int, mesh: Mesh, *, interpret: bool = False
) -> jax.Array:
    """Writes a column of each row at the row's own slot.

    Args:
      cache: [B, K, h, S] or [B, K, S, h], [B, S, R] (without heads), or [B, S] (numbers, of which
        there are few).
      new: of the same shape, with one slot.
      slot_B: int32, clipped to the cache.
    """
    S = cache.shape[axis]
    slot_B = jnp.clip(slot_B, 0, S - 1)
    if cache.ndim == 2:
        return jnp.where(jnp.arange(S)[None] == slot_B[:, None], new, cache)
    if cache.ndim == 3:
        with_head = cache[:, None], new[:, None], slot_B, axis + 1, mesh
        return write_columns(*with_head, interpret=interpret)[:, 0]
    run = partial(of_device, axis=axis, interpret=interpret)
    if mesh.size == 1:
        return run(cache, new, slot_B)
    # One head is on all devices along `tp`: no mesh divides a single KV head.
    rows, heads = (
        PartitionSpec(ROW_AXES),
        PartitionSpec(ROW_AXES, "tp" if cache.shape[1] > 1 else None),
    )
    places = {"in_specs": (heads, heads, rows), "out_specs": heads}
    # The compiler cannot divide a kernel.
    return jax.shard_map(run, mesh=mesh.devices, **places, check_vma=False)(cache, new, slot_B)


def of_device(cache: Array, new: Array, slot_B: Array, *, axis: int, interpret: bool) -> jax.Array:
    """Writes the columns of the rows and heads of one device."""
    B, K, *_ = cache.shape
    if axis == 2 and cache.shape[3] % LANES:  # the last axis is padded to whole tiles: take S
        swapped = jnp.swapaxes(cache, 2, 3), jnp.swapaxes(new, 2, 3)
        return jnp.swapaxes(of_device(*swapped, slot_B, axis=3, interpret=interpret), 2, 3)
    h, S = cache.shape[5 - axis], cache.shape[axis]
    sublanes = 2 * SUBLANES if cache.dtype == jnp.int8 else SUBLANES
    width = min(S, LANES if axis == 3 else sublanes)
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


FEW = 32  # columns of each row that a TPU writes one by one


class KeysValues(NamedTuple):
    """The cache of a layer with attention.

    Keys are stored transposed, so that a row's scores are a product with the cache as it is stored.

    A cache of another kind is a NamedTuple with the same two class attributes:

      slot_axes: for each of its arrays, whose first axis are the rows, the axis of the slots; None
        for a state, which has no slots.
      divided: whether the second axis, of heads or channels, is divided along `tp`.
    """

    keys_BKhS: Array
    values_BKSh: Array
    slot_axes = (3, 2)
    divided = True
    scales = None


class QuantizedKeysValues(NamedTuple):
    """The cache of a layer with attention, in int8 (`Decoder.kv_cache_dtype`).

    Each token has a scale for its key and one for its value in each KV head. With a key x [h]:

        scale = max |x| / 127    number = round(x / scale)    x ~ scale number

    so an error is at most half a scale. The scale of a key multiplies its scores, and that of a
    value the weight of the value, so that attention reads the numbers as they are and no array of
    x is made. A scale is rounded to its dtype before x is divided by it, which adds no error.
    """

    keys_BKhS: Array
    values_BKSh: Array
    key_scales_BK1S: Array
    value_scales_BK1S: Array
    slot_axes = (3, 2, 3, 3)
    divided = True

    @property
    def scales(self) -> tuple[Array, Array]:
        return self.key_scales_BK1S, self.value_scales_BK1S

    @classmethod
    def of(cls, keys_BKhS: Array, values_BKSh: Array, dtype: Any) -> "QuantizedKeysValues":
        """Rounds keys and values to int8, with scales of a dtype."""

        def rounded(x: Array, axis: int) -> tuple[Array, Array]:
            x = x.astype(jnp.float32)
            scales = (jnp.max(jnp.abs(x), axis, keepdims=True) / 127).astype(dtype)
            some = scales.astype(jnp.float32)
            some = jnp.where(some == 0, 1, some)  # a nan stays in its scale
            return jnp.clip(jnp.round(x / some), -127, 127).astype(jnp.int8), scales

        keys, key_scales = rounded(keys_BKhS, 2)
        values, value_scales = rounded(values_BKSh, 3)
        return cls(keys, values, key_scales, value_scales.swapaxes(2, 3))


AnyKeysValues = KeysValues | QuantizedKeysValues
KVCacheDtype = Literal["auto", "int8"]


class Latents(NamedTuple):
    """The cache of a layer with latent attention, the same for all heads."""

    latents_BSR: Array
    keys_BSr: Array  # rotated
    slot_axes = (1, 1)
    divided = False


class NoCache(NamedTuple):
    """The cache of a layer without a mixer."""

    slot_axes = ()
    divided = True


class ChosenExperts(NamedTuple):
    """The experts of each token, 1 + their numbers, in all layers with experts; 0 for no token.

    It is a last cache behind those of the layers (`Decoder.records`).
    """

    chosen_BSX: Array
    slot_axes = (1,)
    divided = False


def map_cache(function: Callable[[Any, Any], Any], layers: Any) -> Any:
    """Returns function(array, axis of its slots) for each array of the caches in a tree."""
    return jax.tree.map(
        lambda layer: type(layer)(*map(function, layer, layer.slot_axes)),
        layers,
        is_leaf=lambda x: hasattr(x, "slot_axes"),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Cache:
    """The caches of all layers, with the positions and segments that masks depend on."""

    layers: tuple[Any, ...]  # of each layer, such as `KeysValues`; and any `ChosenExperts`
    positions_BS: Array
    segment_ids_BS: Array  # 0 on unwritten slots

    def map(self, function: Callable[[Any, int | None], Any]) -> "Cache":
        """Returns function(array, axis of its slots) for each array."""
        return Cache(
            layers=map_cache(function, self.layers),
            positions_BS=function(self.positions_BS, 1),
            segment_ids_BS=function(self.segment_ids_BS, 1),
        )

    def rows(self, rows_b: Array, slots: int) -> "Cache":
        """Returns the first slots of the given rows, or all and empty slots behind them."""

        def take(x: Array, axis: int | None) -> jax.Array:
            more = [(0, 0)] * x.ndim
            if axis is not None:
                x = jax.lax.slice_in_dim(x, 0, min(slots, x.shape[axis]), axis=axis)
                more[axis] = (0, slots - x.shape[axis])
            return jnp.pad(jnp.take(x, rows_b, axis=0), more)

        return self.map(take)


class Prefix(NamedTuple):
    """The caches of all tokens before the first one of each row.

    Attributes:
      layers: for each period of layers (`pattern.py`), the caches of its layers, each stacked over
        the repetitions: [repeats, B, ...].
    """

    layers: tuple[tuple[Any, ...], ...]
    segment_ids_BS: Array  # 0 after the end of the prefix

    @property
    def positions_BS(self) -> Array:  # noqa: N802
        places = jnp.arange(self.segment_ids_BS.shape[1], dtype=jnp.int32)
        return jnp.broadcast_to(places, self.segment_ids_BS.shape)


class Writer(NamedTuple):
    """Writes keys and values to a cache, whose rows devices with the same KV heads may divide.

    Attributes:
      slot: the first slot to write; or an array [B] of one slot per row.
      mesh: the mesh that the rows and heads are sharded over; None leaves all to the compiler.
    """

    slot: Array | int
    mesh: Mesh | None

    def __call__(self, cache: Array, new: Array, axis: int) -> Array:
        return write(cache, new.astype(cache.dtype), self.slot, axis, self.mesh)

    def for_products(self, x_BTD: Array) -> Array:
        """Returns the results of attention, each head on the device that multiplies it next.

        That is the exchange before attention, reversed. The compiler would gather all heads. If
        there was none (`SamplingMesh.divides_heads`), each row stays on its devices. Rows that the
        devices cannot divide evenly are left to the compiler.
        """
        if not isinstance(self.mesh, SamplingMesh) or self.mesh.devices.shape["fsdp"] == 1:
            return x_BTD
        rows = tuple(axis for axis in ROW_AXES if axis not in self.mesh.head_axes)
        if len(x_BTD) % math.prod(self.mesh.devices.shape[axis] for axis in rows):
            return x_BTD
        spec = PartitionSpec(rows, None, self.mesh.head_axes)
        return jax.lax.with_sharding_constraint(x_BTD, NamedSharding(self.mesh.devices, spec))


def write(
    cache: Array, new: Array, slot: Array | int, axis: int, mesh: Mesh | None = None
) -> Array:
    """Writes `new` from `slot` on (`Writer`)."""
    if jnp.ndim(slot) == 0:
        return jax.lax.dynamic_update_slice_in_dim(cache, new, slot, axis=axis)
    few = new.shape[axis] <= FEW
    if few and mesh is not None and mesh.platform == "tpu" and len(cache) % mesh.row_shards == 0:
        for i in range(new.shape[axis]):
            column = jax.lax.slice_in_dim(new, i, i + 1, axis=axis)
            cache = write_columns(cache, column, jnp.asarray(slot) + i, axis, mesh)
        return cache
    # Rows are mapped and not indexed, so that each device writes only its own rows.
    return jax.vmap(partial(jax.lax.dynamic_update_slice_in_dim, axis=axis - 1))(cache, new, slot)
