"""The compiled programs of the server.

The token at position p of a sequence is in column p of the row of its slot, in all of them.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.model.cache import Cache
from rl4p.model.decoder import Decoder
from rl4p.model.policy import padded_width
from rl4p.model.sampling import Draws, draw_each
from rl4p.rollout.continuous import of_cache
from rl4p.types import Array, Params

MOST_STEPS = 64  # decode steps of one device call
MOST_ALTERNATIVES = 20
COLUMNS_PER_READ = 512  # of a long context that are processed at a time
LOGITS_PER_CHUNK = 2**22  # of a scored context that exist at a time


class State(NamedTuple):
    """What a decode step changes in n slots.

    Attributes:
      token_n: int32, the newest token, which the next decode step reads.
      length_n: int32, the number of tokens of the sequence.
      drawn_n: int32, how many of them were drawn.
      active_n: bool, whether the slot has a sequence that goes on.
    """

    token_n: Array
    length_n: Array
    drawn_n: Array
    active_n: Array


class Constants(NamedTuple):
    """What stays the same for the sequences in n slots.

    Attributes:
      limit_n, least_n: int32, `max_tokens` and `min_tokens`.
      temperature_n, top_k_n, top_p_n: the sampling distributions.
      ends_nE: int32, the end tokens, filled with -1.
      keys_n: uint32 [n, ...], the data of the random keys.
    """

    limit_n: Array
    least_n: Array
    temperature_n: Array
    top_k_n: Array
    top_p_n: Array
    ends_nE: Array
    keys_n: Array


class Found(NamedTuple):
    """The tokens of a device call of M decode steps; those after a sequence ended are undefined.

    Attributes:
      tokens_nM, logprobs_nM: the drawn tokens and their log-probabilities.
      others_nMA, other_logprobs_nMA: the A most probable tokens; A is 0 unless they are asked for.
    """

    tokens_nM: Array
    logprobs_nM: Array
    others_nMA: Array
    other_logprobs_nMA: Array

    @staticmethod
    def empty(n: int, A: int) -> "Found":
        return Found(
            tokens_nM=jnp.zeros((n, MOST_STEPS), jnp.int32),
            logprobs_nM=jnp.zeros((n, MOST_STEPS), jnp.float32),
            others_nMA=jnp.zeros((n, MOST_STEPS, A), jnp.int32),
            other_logprobs_nMA=jnp.zeros((n, MOST_STEPS, A), jnp.float32),
        )

    def put(self, step: Array, draws: Draws) -> "Found":
        """Writes the column of a decode step."""

        def column(x: Array, new: Array) -> jax.Array:
            if not x.size:
                return jnp.asarray(x)
            return jax.lax.dynamic_update_slice_in_dim(x, new[:, None], step, axis=1)

        return Found(*map(column, self, draws))


@partial(jax.jit, static_argnames=("decoder", "extras"), donate_argnames=("cache",))
def decode(
    decoder: Decoder,
    params: Params,
    cache: Cache,
    state: State,
    constants: Constants,
    steps: Array,
    enough: Array,
    *,
    extras: bool,
) -> tuple[Cache, jax.Array, Found]:
    """Decodes `steps` tokens of every slot, or until at most `enough` sequences go on.

    Args:
      extras: whether to heed `min_tokens` and to find the most probable tokens, which takes longer.

    Returns:
      The cache; all that is needed after every call in a single array, which the host reads
      faster than several (`Outcome`); and what was found.
    """
    c = constants
    n, V = state.token_n.shape[0], decoder.config.vocabulary
    A = min(MOST_ALTERNATIVES, V) if extras else 0
    ones_n1 = jnp.ones((n, 1), jnp.int32)
    keys_n = jax.random.wrap_key_data(jnp.asarray(c.keys_n))

    def decode_step(carry: tuple) -> tuple:
        step, cache, (token_n, length_n, drawn_n, active_n), found = carry
        places_n = length_n - 1
        inputs = token_n[:, None], places_n[:, None], ones_n1
        hidden_n1D, cache = decoder.extend(params, *inputs, cache, places_n)
        logits_nV = decoder.logits(params, hidden_n1D[:, 0])
        if extras:
            early_n1 = (drawn_n < c.least_n)[:, None]
            logits_nV = without(logits_nV, jnp.where(early_n1, c.ends_nE, -1))
        draws = draw_each(
            logits_nV,
            jnp.where(active_n, c.temperature_n, 0.0),
            jnp.where(active_n, c.top_k_n, 0),
            jnp.where(active_n, c.top_p_n, 1.0),
            keys_n,
            drawn_n,
            A,
        )
        found, token_n = found.put(step, draws), draws.token_B
        length_n, drawn_n = (x + active_n.astype(jnp.int32) for x in (length_n, drawn_n))
        ended_n = jnp.any(token_n[:, None] == c.ends_nE, axis=1) | (drawn_n >= c.limit_n)
        return step + 1, cache, State(token_n, length_n, drawn_n, active_n & ~ended_n), found

    def worth(carry: tuple) -> Array:
        step, _, state, _ = carry
        return (step < steps) & (jnp.sum(state.active_n, dtype=jnp.int32) > enough)

    begin = jnp.int32(0), cache, state, Found.empty(n, A)
    step, cache, state, found = jax.lax.while_loop(worth, decode_step, begin)
    return cache, packed(step, state, found), found


def without(logits_nV: Array, tokens_nE: Array) -> jax.Array:
    """Returns the logits with -inf at the given tokens of each row; those of -1 are none."""
    ids_V = jnp.arange(logits_nV.shape[1], dtype=jnp.int32)
    hit_nV = jnp.zeros(logits_nV.shape, jnp.bool_)
    for e in range(tokens_nE.shape[1]):  # few; a scatter would run element by element on a CPU
        hit_nV |= ids_V[None] == tokens_nE[:, e, None]
    return jnp.where(hit_nV, -jnp.inf, logits_nV)


class Outcome(NamedTuple):
    """What the host reads after each device call, as NumPy arrays (`packed`)."""

    steps: int
    drawn_n: np.ndarray
    active_n: np.ndarray
    tokens_nM: np.ndarray
    logprobs_nM: np.ndarray

    @staticmethod
    def of(packed_nX: np.ndarray) -> "Outcome":
        """Returns the parts of a packed array."""
        return Outcome(
            steps=int(packed_nX[0, 0]),
            drawn_n=packed_nX[:, 1],
            active_n=packed_nX[:, 2] > 0,
            tokens_nM=packed_nX[:, 3 : 3 + MOST_STEPS],
            logprobs_nM=packed_nX[:, 3 + MOST_STEPS :].view(np.float32),
        )


def packed(steps: Array, state: State, found: Found) -> jax.Array:
    """Returns an int32 array [n, 3 + 2 M] of what `Outcome` names."""
    columns = jnp.broadcast_to(steps, state.drawn_n.shape), state.drawn_n, state.active_n
    numbers = jnp.stack([x.astype(jnp.int32) for x in columns], axis=1)
    bits_nM = jax.lax.bitcast_convert_type(found.logprobs_nM, jnp.int32)
    return jnp.concatenate([numbers, jnp.asarray(found.tokens_nM), bits_nM], axis=1)


def read(
    decoder: Decoder, params: Params, tokens_PT: Array, lengths_P: Array
) -> tuple[Cache, jax.Array]:
    """Runs P sequences, padded right; returns their cache and final activations [P, T, D]."""
    P, T = tokens_PT.shape
    width = min(T, COLUMNS_PER_READ)  # both are powers of two
    cache = decoder.empty_cache(P, T)

    def part(cache: Cache, start: Array) -> tuple[Cache, Array]:
        columns_W = start + jnp.arange(width, dtype=jnp.int32)
        positions_PW = jnp.broadcast_to(columns_W, (P, width))
        segments_PW = (positions_PW < lengths_P[:, None]).astype(jnp.int32)
        tokens_PW = jax.lax.dynamic_slice_in_dim(tokens_PT, start, width, axis=1)
        inputs = tokens_PW, positions_PW, segments_PW
        hidden_PWD, cache = decoder.extend(params, *inputs, cache, start)
        return cache, hidden_PWD

    starts = jnp.arange(0, T, width, dtype=jnp.int32)
    cache, hidden_APWD = jax.lax.scan(part, cache, starts)
    return cache, jnp.moveaxis(hidden_APWD, 0, 1).reshape(P, T, -1)


@partial(jax.jit, static_argnames=("decoder",))
def prefill(decoder: Decoder, params: Params, tokens_PT: Array, lengths_P: Array) -> Cache:
    """Returns the cache of P contexts, padded right."""
    return read(decoder, params, tokens_PT, lengths_P)[0]


@partial(jax.jit, static_argnames=("decoder",))
def score(decoder: Decoder, params: Params, tokens_T: Array, length: Array) -> jax.Array:
    """Returns log p(token t + 1 | tokens up to t) at temperature 1, float32 [T].

    Only the first `length` - 1 are of the sequence, which is padded right.
    """
    T = len(tokens_T)
    _, hidden_1TD = read(decoder, params, tokens_T[None], length[None])
    columns = 1 << max(0, (LOGITS_PER_CHUNK // decoder.config.vocabulary).bit_length() - 1)
    width = min(T, max(1, columns))  # both are powers of two

    def logprobs(chunk: tuple[Array, Array]) -> jax.Array:
        hidden_CD, next_C = chunk
        logprobs_CV = jax.nn.log_softmax(decoder.logits(params, hidden_CD), axis=-1)
        return jnp.take_along_axis(logprobs_CV, next_C[:, None], axis=1)[:, 0]

    chunks = hidden_1TD.reshape(T // width, width, -1), jnp.roll(tokens_T, -1).reshape(-1, width)
    return jax.lax.map(logprobs, chunks).reshape(T)


def scored_tokens(decoder: Decoder, params: Params, tokens: Sequence[int]) -> jax.Array:
    """Starts `score` for tokens padded to one of few widths."""
    tokens_T = np.zeros(padded_width(len(tokens)), np.int32)
    tokens_T[: len(tokens)] = tokens
    return score(decoder, params, tokens_T, np.int32(len(tokens)))


@partial(jax.jit, donate_argnames=("cache",))
def place(cache: Cache, prefilled: Cache, slots_n: Array, rows_n: Array, count: Array) -> Cache:
    """Copies prefilled contexts to the first `count` slots of `slots_n`, in place."""
    more = cache.positions_BS.shape[1] - prefilled.positions_BS.shape[1]
    # Keys of the slot's former sequence may stay, since nothing of segment 0 is seen.
    whole = prefilled.segment_ids_BS
    prefilled = Cache(
        layers=prefilled.layers,
        positions_BS=prefilled.positions_BS,
        segment_ids_BS=jnp.pad(whole, ((0, 0), (0, more))),
    )

    def copy(i: Array, cache: Cache) -> Cache:
        def of(x: Array, new: Array) -> jax.Array:
            row = jax.lax.dynamic_slice_in_dim(new, rows_n[i], 1, axis=0)
            starts = slots_n[i], *(jnp.int32(0),) * (x.ndim - 1)
            return jax.lax.dynamic_update_slice(x, row, starts)

        return jax.tree.map(of, cache, prefilled)

    return jax.lax.fori_loop(0, count, copy, cache)


@partial(jax.jit, static_argnames=("columns", "mesh"))
def resized(cache: Cache, rows_n: Array, columns: int, mesh: Mesh) -> Cache:
    """Returns the given rows of the cache with this number of columns."""

    def take(x: Array, axis: int) -> jax.Array:
        x = jax.lax.slice_in_dim(x, 0, min(columns, x.shape[axis]), axis=axis)
        more: list[Any] = [(0, 0)] * x.ndim
        more[axis] = (0, columns - x.shape[axis])
        return jnp.pad(jnp.take(x, rows_n, axis=0), more)

    found = Cache(
        layers=tuple((take(k, 3), take(v, 2)) for k, v in cache.layers),
        positions_BS=take(cache.positions_BS, 1),
        segment_ids_BS=take(cache.segment_ids_BS, 1),
    )
    return divided(found, mesh)


@partial(jax.jit, static_argnames=("decoder", "rows", "columns", "mesh"))
def empty(decoder: Decoder, rows: int, columns: int, mesh: Mesh) -> Cache:
    """Returns a cache without any tokens."""
    return divided(decoder.empty_cache(rows, columns), mesh)


def divided(cache: Cache, mesh: Mesh) -> Cache:
    """Returns the cache, sharded over the mesh."""
    if mesh.size == 1:
        return cache
    return jax.lax.with_sharding_constraint(cache, of_cache(cache, mesh))


@partial(jax.jit, donate_argnames=("cache",))
def cleared(cache: Cache, clear_n: Array) -> Cache:
    """Returns the cache with zeros in the given rows: a NaN would spoil even masked attention."""

    def of(x: Array) -> jax.Array:
        return jnp.where(clear_n.reshape(-1, *(1,) * (x.ndim - 1)), jnp.zeros((), x.dtype), x)

    return jax.tree.map(of, cache)
