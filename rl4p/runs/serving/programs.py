"""The compiled programs of the server.

The token at position p of a sequence is in column p of the row of its slot, in all of them.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl4p.distributed.mesh import Mesh
from rl4p.model.cache import Cache
from rl4p.model.decoder import Decoder
from rl4p.model.sampling import draw_each
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
      shows_n: bool, whether alternatives are reported.
      ends_nE: int32, the end tokens, filled with -1.
      keys_n: uint32 [n, ...], the data of the random keys.
    """

    limit_n: Array
    least_n: Array
    temperature_n: Array
    top_k_n: Array
    top_p_n: Array
    shows_n: Array
    ends_nE: Array
    keys_n: Array


class Found(NamedTuple):
    """The tokens of a device call of M decode steps; those after a sequence ended are undefined.

    Attributes:
      tokens_nM, logprobs_nM: the drawn tokens and their log-probabilities.
      others_nMA, other_logprobs_nMA: the A most probable tokens where `Constants.shows_n` is set.
      steps: the number of decode steps that ran.
    """

    tokens_nM: Array
    logprobs_nM: Array
    others_nMA: Array
    other_logprobs_nMA: Array
    steps: Array

    @staticmethod
    def empty(n: int, vocabulary: int) -> "Found":
        A = min(MOST_ALTERNATIVES, vocabulary)
        return Found(
            tokens_nM=jnp.zeros((n, MOST_STEPS), jnp.int32),
            logprobs_nM=jnp.zeros((n, MOST_STEPS), jnp.float32),
            others_nMA=jnp.zeros((n, MOST_STEPS, A), jnp.int32),
            other_logprobs_nMA=jnp.zeros((n, MOST_STEPS, A), jnp.float32),
            steps=jnp.int32(0),
        )


@partial(jax.jit, static_argnames=("decoder",), donate_argnames=("cache",))
def decode(
    decoder: Decoder,
    params: Params,
    cache: Cache,
    state: State,
    constants: Constants,
    steps: Array,
    enough: Array,
) -> tuple[Cache, State, Found]:
    """Decodes `steps` tokens of every slot, or until at most `enough` sequences go on."""
    c = constants
    ones_n1 = jnp.ones((state.token_n.shape[0], 1), jnp.int32)
    keys_n = jax.random.wrap_key_data(jnp.asarray(c.keys_n))

    def decode_step(carry: tuple) -> tuple:
        cache, (token_n, length_n, drawn_n, active_n), found = carry
        places_n = length_n - 1
        inputs = token_n[:, None], places_n[:, None], ones_n1
        hidden_n1D, cache = decoder.extend(params, *inputs, cache, places_n)
        logits_nV = decoder.logits(params, hidden_n1D[:, 0])
        early_n = active_n & (drawn_n < c.least_n)
        logits_nV = jax.lax.cond(
            jnp.any(early_n), without, lambda x_nV, *_: x_nV, logits_nV, c.ends_nE, early_n
        )
        token_n, logprobs_nV = draw_each(
            logits_nV,
            jnp.where(active_n, c.temperature_n, 0.0),
            jnp.where(active_n, c.top_k_n, 0),
            jnp.where(active_n, c.top_p_n, 1.0),
            keys_n,
            drawn_n,
        )
        logprob_n = jnp.take_along_axis(logprobs_nV, token_n[:, None], axis=1)[:, 0]
        found = noted(found, token_n, logprob_n)
        found = jax.lax.cond(
            jnp.any(active_n & c.shows_n), with_others, lambda x, _: x, found, logprobs_nV
        )
        length_n, drawn_n = (x + active_n.astype(jnp.int32) for x in (length_n, drawn_n))
        ended_n = jnp.any(token_n[:, None] == c.ends_nE, axis=1) | (drawn_n >= c.limit_n)
        state = State(token_n, length_n, drawn_n, active_n & ~ended_n)
        return cache, state, found._replace(steps=found.steps + 1)

    def worth(carry: tuple) -> Array:
        _, state, found = carry
        return (found.steps < steps) & (jnp.sum(state.active_n, dtype=jnp.int32) > enough)

    found = Found.empty(len(ones_n1), decoder.config.vocabulary)
    return jax.lax.while_loop(worth, decode_step, (cache, state, found))


def without(logits_nV: Array, ends_nE: Array, early_n: Array) -> jax.Array:
    """Returns the logits with -inf at the end tokens of rows that must not end yet."""
    V = logits_nV.shape[1]
    rows_n1 = jnp.arange(len(logits_nV), dtype=jnp.int32)[:, None]
    places_nE = jnp.where(early_n[:, None] & (ends_nE >= 0), ends_nE, V)
    return jnp.asarray(logits_nV).at[rows_n1, places_nE].set(-jnp.inf, mode="drop")


def noted(found: Found, token_n: Array, logprob_n: Array) -> Found:
    """Writes the tokens of this decode step."""

    def put(x_nM: Array, new_n: Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(x_nM, new_n[:, None], found.steps, axis=1)

    return found._replace(
        tokens_nM=put(found.tokens_nM, token_n), logprobs_nM=put(found.logprobs_nM, logprob_n)
    )


def with_others(found: Found, logprobs_nV: Array) -> Found:
    """Writes the most probable tokens of this decode step."""
    values_nA, tokens_nA = jax.lax.top_k(logprobs_nV, found.others_nMA.shape[2])

    def put(x_nMA: Array, new_nA: Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(x_nMA, new_nA[:, None], found.steps, axis=1)

    return found._replace(
        others_nMA=put(found.others_nMA, tokens_nA),
        other_logprobs_nMA=put(found.other_logprobs_nMA, values_nA),
    )


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
