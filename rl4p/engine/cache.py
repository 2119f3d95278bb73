"""The compiled programs that fill, resize and clear the cache of n slots.

The token at position p of a sequence is in column `padding` + p of its row. Without padding,
contexts begin in column 0. With it they end in one column, so that completions all begin there.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.distributed.collectives import gather_rows
from rl4p.distributed.mesh import ROW_AXES, Mesh
from rl4p.model.cache import Cache
from rl4p.model.decoder import Decoder
from rl4p.model.exact_sums import token_logprobs
from rl4p.model.policy import padded_width

COLUMNS_PER_READ = 512  # of a long context that are processed at a time
STAGES = 4  # of a long context, each compiled: a token sees no column behind its stage


def read(
    decoder: Decoder,
    params: Params,
    tokens_PT: Array,
    padding_P: Array,
    lengths_P: Array,
    mesh: Mesh,
) -> tuple[Cache, Array]:
    """Runs P contexts; returns their cache and final activations [P, T, D].

    Args:
      padding_P: the number of columns before the first token of each.
      lengths_P: the number of tokens of each; columns behind them are unused.
    """
    P, T = tokens_PT.shape
    cache = decoder.empty_cache(P, T)
    begin_P1, end_P1 = padding_P[:, None], (padding_P + lengths_P)[:, None]

    def part(
        cache: Cache, start: Array | int, width: int, end: int | None = None
    ) -> tuple[Cache, Array]:
        columns_1W = start + jnp.arange(width, dtype=jnp.int32)[None]
        segments_PW = ((columns_1W >= begin_P1) & (columns_1W < end_P1)).astype(jnp.int32)
        positions_PW = jnp.maximum(columns_1W - begin_P1, 0)
        tokens_PW = jax.lax.dynamic_slice_in_dim(tokens_PT, start, width, axis=1)
        inputs = tokens_PW, positions_PW, segments_PW
        hidden_PWD, cache = decoder.extend(params, *inputs, cache, start, mesh, columns=end)
        return cache, hidden_PWD

    if T <= COLUMNS_PER_READ:
        return part(cache, 0, T)
    width = COLUMNS_PER_READ  # T is a power of two, too
    size, hidden = T // min(STAGES, T // width), []
    for begin in range(0, T, size):
        starts = jnp.arange(begin, begin + size, width, dtype=jnp.int32)
        run = partial(part, width=width, end=begin + size)
        cache, hidden_APWD = jax.lax.scan(run, cache, starts)
        hidden.append(jnp.moveaxis(hidden_APWD, 0, 1).reshape(P, size, -1))
    return cache, jnp.concatenate(hidden, axis=1)


@partial(jax.jit, static_argnames=("decoder", "mesh"))
def prefill(
    decoder: Decoder,
    params: Params,
    tokens_PT: Array,
    padding_P: Array,
    lengths_P: Array,
    mesh: Mesh,
) -> Cache:
    """Returns the cache of P contexts; each device has the rows that its slots begin with."""
    return divided(read(decoder, params, tokens_PT, padding_P, lengths_P, mesh)[0], mesh)


@partial(jax.jit, static_argnames=("columns", "mesh"))
def row_of(cache: Cache, slot: Array, columns: int, mesh: Mesh) -> Cache:
    return gather_rows(mesh, cache.rows(slot[None], columns))


@partial(jax.jit, static_argnames="mesh")
def whole_row(prompts: Cache, cache: Cache, row: Array, slot: Array, mesh: Mesh) -> Cache:
    """Returns the row of a slot behind its prompt, whose last column the slot has."""
    before = prompts.rows(row[None], prompts.positions_BS.shape[1] - 1)
    own = cache.rows(slot[None], cache.positions_BS.shape[1])
    at = iter(jax.tree.leaves(before))

    def joined(x: Array, axis: int | None) -> Array:
        return x if axis is None else jnp.concatenate([next(at), x], axis=axis)

    return gather_rows(mesh, own.map(joined))


@partial(jax.jit, static_argnames=("decoder", "columns", "mesh"))
def continued(
    decoder: Decoder,
    params: Params,
    rows: Sequence[Cache],
    shift_P: Array,
    tokens_PT: Array,
    column_P: Array,
    position_P: Array,
    length_P: Array,
    columns: int,
    mesh: Mesh,
) -> Cache:
    """Returns the cache of P contexts of which the first tokens are in rows of other caches.

    Args:
      rows: P caches of one row.
      shift_P: by how many columns the tokens of a row are moved to the right.
      tokens_PT: the other tokens, padded right.
      column_P, position_P: of the first of them; its column may hold something else.
      length_P: the number of them.
      columns: the number of columns of the result.
    """
    (P, T), row_P = tokens_PT.shape, np.arange(len(rows))
    several: Cache = jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
    wide = several.rows(row_P, max(columns, several.positions_BS.shape[1]) + T)

    def moved(x: Array, axis: int | None) -> Array:
        return x if axis is None else jax.vmap(partial(jnp.roll, axis=axis - 1))(x, shift_P)

    wide = wide.map(moved)
    steps_PT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32)[None], (P, T))
    positions_PT = steps_PT + position_P[:, None]
    inputs = tokens_PT, positions_PT, (steps_PT < length_P[:, None]).astype(jnp.int32)
    wide = decoder.extend(params, *inputs, wide, column_P, mesh)[1]
    return wide.rows(row_P, columns)


@partial(
    jax.jit,
    static_argnames=("columns", "mesh", "everywhere", "states"),
    donate_argnames=("cache",),
)
def place(
    cache: Cache | None,
    prefilled: Cache,
    row_n: Array,
    columns: int,
    mesh: Mesh,
    everywhere: bool = False,
    states: bool = False,
) -> Cache:
    """Copies prefilled contexts to slots, in place. No device sends rows to another.

    Args:
      cache: None creates a cache of `columns` columns.
      row_n: int32, the row of `prefilled` for each slot, counted from the first row of the same
        shard; -1 leaves the slot as it is.
      everywhere: whether all rows of `prefilled` are on all devices.
      states: whether to copy only the states, and to leave the columns of the slots empty.
    """
    if states:
        prefilled = prefilled.map(
            lambda x, axis: x if axis is None else jax.lax.slice_in_dim(x, 0, 0, axis=axis)
        )
    run = partial(place_rows, columns=columns)
    if mesh.size == 1:
        return run(cache, prefilled, row_n)
    own = specs(prefilled, mesh)
    whole = jax.tree.map(lambda spec: PartitionSpec(None, *spec[1:]), own)
    before = None if cache is None else own
    return jax.shard_map(
        run,
        mesh=mesh.devices,
        in_specs=(before, whole if everywhere else own, mesh.rows.spec),
        out_specs=own,
        check_vma=False,
    )(cache, prefilled, row_n)


def place_rows(cache: Cache | None, prefilled: Cache, row_n: Array, columns: int) -> Cache:
    """Copies prefilled contexts to the slots of one device."""
    T = prefilled.positions_BS.shape[1]
    fresh = prefilled.rows(jnp.maximum(row_n, 0), T if cache is not None else columns)
    if cache is None:
        return fresh
    # Keys of the slot's former sequence may stay, since nothing of segment 0 is seen.
    segments = jnp.pad(jnp.asarray(fresh.segment_ids_BS), ((0, 0), (0, columns - T)))

    def chosen(x: Array, new: Array) -> jax.Array:
        old = jax.lax.slice(x, (0,) * x.ndim, new.shape)
        new_n = (row_n >= 0).reshape(-1, *(1,) * (x.ndim - 1))
        return jax.lax.dynamic_update_slice(x, jnp.where(new_n, new, old), (0,) * x.ndim)

    fresh = Cache(layers=fresh.layers, positions_BS=fresh.positions_BS, segment_ids_BS=segments)
    return jax.tree.map(chosen, cache, fresh)


def resized(cache: Cache, row_n: Array, columns: int, mesh: Mesh, moves: bool = False) -> Cache:
    """Returns the given rows of the cache with this number of columns, and deletes the cache.

    Each layer is deleted before the next is computed: two whole caches would need more memory than
    any other program of a rollout. The host does not wait for the layers: in the server, each wait
    would hand its turn to the threads that encode responses.

    Args:
      row_n: int32, for each new row the old row, counted from the first row of the same shard.
      moves: whether rows may move to other devices; then they are counted from the first of all.
    """
    if mesh.size > 1:
        row_n = mesh.shard_rows(row_n)
    parts = []
    for layer in cache.layers:
        parts.append(resized_layer(replace(cache, layers=(layer,)), row_n, columns, mesh, moves))
        for x in layer:
            jnp.asarray(x).delete()
    return replace(parts[-1], layers=tuple(layer for part in parts for layer in part.layers))


@partial(jax.jit, static_argnames=("columns", "mesh", "moves"))
def resized_layer(
    cache: Cache, row_n: Array, columns: int, mesh: Mesh, moves: bool = False
) -> Cache:
    """Returns the given rows of a cache of one layer. No device sends rows unless `moves`."""
    if mesh.size == 1:
        return cache.rows(row_n, columns)
    if moves:
        return divided(cache.rows(row_n, columns), mesh)
    return jax.shard_map(
        lambda cache, row_n: cache.rows(row_n, columns),
        mesh=mesh.devices,
        in_specs=(specs(cache, mesh), mesh.rows.spec),
        out_specs=specs(cache, mesh),
        check_vma=False,
    )(cache, row_n)


@partial(jax.jit, donate_argnames=("cache",))
def cleared(cache: Cache, clear_n: Array) -> Cache:
    def of(x: Array) -> jax.Array:
        return jnp.where(clear_n.reshape(-1, *(1,) * (x.ndim - 1)), jnp.zeros((), x.dtype), x)

    return jax.tree.map(of, cache)


def divided(cache: Cache, mesh: Mesh) -> Cache:
    """Returns the cache, sharded over the mesh."""
    if mesh.size == 1:
        return cache
    return jax.lax.with_sharding_constraint(cache, cache_shardings(cache, mesh))


def cache_shardings(cache: Cache, mesh: Mesh) -> Any:
    """Returns the shardings of a cache: rows over `dp` and `fsdp`, heads over `tp`."""
    rows_and_heads = NamedSharding(mesh.devices, PartitionSpec(ROW_AXES, "tp"))
    shardings: Any = Cache  # typed Any, since the fields here are shardings and not arrays
    return shardings(
        layers=tuple(
            jax.tree.map(lambda _, place=rows_and_heads if x.divided else mesh.rows: place, x)
            for x in cache.layers
        ),
        positions_BS=mesh.rows,
        segment_ids_BS=mesh.rows,
    )


def specs(cache: Cache, mesh: Mesh) -> Any:
    return jax.tree.map(lambda sharding: sharding.spec, cache_shardings(cache, mesh))


LOGITS_PER_CHUNK = 2**22  # that exist at a time


def scored_tokens(decoder: Decoder, params: Params, tokens: Sequence[int], mesh: Mesh) -> jax.Array:
    """Starts `score` for tokens padded to one of few widths."""
    tokens_T = np.zeros(padded_width(len(tokens)), np.int32)
    tokens_T[: len(tokens)] = tokens
    return score(decoder, params, tokens_T, np.int32(len(tokens)), mesh)


@partial(jax.jit, static_argnames=("decoder", "mesh"))
def score(
    decoder: Decoder, params: Params, tokens_T: Array, length: Array, mesh: Mesh
) -> jax.Array:
    """Returns log p(token t + 1 | tokens up to t) at temperature 1, float32 [T].

    Only the first `length` - 1 are of the sequence, which is padded right.
    """
    T, length_1 = len(tokens_T), length[None]
    contexts = tokens_T[None], jnp.zeros_like(length_1), length_1
    _, hidden_1TD = read(decoder, params, *contexts, mesh)
    columns = 1 << max(0, (LOGITS_PER_CHUNK // decoder.config.vocabulary).bit_length() - 1)
    width = min(T, max(1, columns))  # both are powers of two

    def logprobs(chunk: tuple[Array, Array]) -> jax.Array:
        hidden_CD, next_C = chunk
        logits_CV = decoder.logits(params, hidden_CD)
        if decoder.exact:
            return token_logprobs(logits_CV, next_C)
        logprobs_CV = jax.nn.log_softmax(logits_CV, axis=-1)
        return jnp.take_along_axis(logprobs_CV, next_C[:, None], axis=1)[:, 0]

    chunks = hidden_1TD.reshape(T // width, width, -1), jnp.roll(tokens_T, -1).reshape(-1, width)
    return jax.lax.map(logprobs, chunks).reshape(T)


def check_scored(tokens: Sequence[int], longest: int) -> None:
    """Checks the number of tokens to score.

    Raises:
      InputError: there are none, or more than the `longest` positions of the model.
    """
    if not 1 <= len(tokens) <= longest:
        raise InputError(
            f"{len(tokens)} tokens cannot be scored: the model takes from 1 to {longest}."
        )
