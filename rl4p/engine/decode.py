"""The compiled program that decodes the sequences in n slots, and their distributions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Params, Sampling
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.processes import to_host
from rl4p.engine.cache import divided
from rl4p.model.cache import Cache
from rl4p.model.decoder import Decoder
from rl4p.model.prompt_cache import PromptCache
from rl4p.model.sampling import (
    RESPONSE,
    Draws,
    draw,
    draw_each,
    log_share,
    next_tokens,
    penalized,
    recorded_support,
    sampling_logits,
    sampling_logprobs,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class SharedDistribution:
    """The distribution of all sequences of a rollout.

    It is part of the compiled program, which sorts the vocabulary only if `sampling` needs it.

    Attributes:
      greedy: bool or array, whether to choose the most probable token at every step.
      temperature: number or array, in place of `sampling.temperature`; None keeps that one.
      alternatives: how many of the most probable tokens are recorded with each drawn token.
    """

    sampling: Sampling = field(metadata={"static": True})
    greedy: Any
    temperature: Any = None
    alternatives: int = field(default=0, metadata={"static": True})

    def draw(
        self,
        logits_nV: Array,
        active_n: Array,
        keys_n: Array,
        t_n: Array,
        alternatives: int,
        *,
        exact: bool = False,
    ) -> Draws:
        """Draws token t_n of each slot, in free slots too.

        With `Sampling.replay_support`, the tokens that may be drawn are those that are recorded: of
        more than top-k, which are equal in the last place, some are left out.
        """
        del active_n
        if self.sampling.replay_support:
            logits_nV = sampling_logits(logits_nV, self.sampling, temperature=self.temperature)
            values_nA, others_nA = jax.lax.top_k(logits_nV, alternatives)
            support_nV = recorded_support(others_nA, values_nA, logits_nV.shape[-1])
            logits_nV = jnp.where(support_nV, logits_nV, -jnp.inf)
            drawn = next_tokens(logits_nV, keys_n, t_n, self.greedy, exact=exact)
            return Draws(*drawn, others_nA, jax.nn.log_softmax(values_nA, axis=-1))
        options = keys_n, t_n, self.greedy, self.temperature
        token_n, logprob_n = draw(logits_nV, self.sampling, *options, exact=exact)
        if not alternatives:  # XLA may keep a sort of which nothing is taken
            none_n0 = jnp.zeros((len(token_n), 0), jnp.int32)
            return Draws(token_n, logprob_n, none_n0, none_n0.astype(jnp.float32))
        logprobs_nV = sampling_logprobs(logits_nV, self.sampling, temperature=self.temperature)
        values_nA, others_nA = jax.lax.top_k(logprobs_nV, alternatives)
        return Draws(token_n, logprob_n, others_nA, values_nA)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OwnDistributions:
    """A distribution for each slot: int32 [n] for top-k, float32 [n] otherwise.

    Attributes:
      log_min_p_n: `log_share` of each slot's min-p.
      repetition_n, presence_n: the penalties (`Sampling`).
    """

    temperature_n: Array
    top_k_n: Array
    top_p_n: Array
    log_min_p_n: Array
    repetition_n: Array
    presence_n: Array

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> "OwnDistributions":
        """Returns the distributions of rows, on the host."""
        kinds = np.float32, np.int32, *(np.float32,) * 4
        columns = np.array([numbers(x) for x in rows]).reshape(-1, len(kinds)).T
        return cls(*(x.astype(kind) for x, kind in zip(columns, kinds, strict=True)))

    def draw(
        self,
        logits_nV: Array,
        active_n: Array,
        keys_n: Array,
        t_n: Array,
        alternatives: int,
        *,
        exact: bool = False,
    ) -> Draws:
        """Draws token t_n of each slot; a free slot never needs the vocabulary sorted."""
        return draw_each(
            logits_nV,
            jnp.where(active_n, self.temperature_n, 0.0),
            jnp.where(active_n, self.top_k_n, 0),
            jnp.where(active_n, self.top_p_n, 1.0),
            jnp.where(active_n, self.log_min_p_n, -jnp.inf),
            keys_n,
            t_n,
            alternatives,
            exact=exact,
        )


def numbers(sampling: Sampling) -> tuple[float, ...]:
    """Returns the values of a slot, in the order of the attributes of `OwnDistributions`."""
    cuts = sampling.temperature, sampling.top_k, sampling.top_p, float(log_share(sampling.min_p))
    return (*cuts, sampling.repetition_penalty, sampling.presence_penalty)


Distribution = SharedDistribution | OwnDistributions


MOST_STEPS = 64  # decode steps of one device call
MOST_ALTERNATIVES = 20


class SlotState(NamedTuple):
    """What a decode step changes in n slots.

    Attributes:
      token_n: int32, the newest token, which the next decode step reads.
      length_n: int32, the number of tokens of the sequence.
      drawn_n: int32, how many tokens its key has drawn.
      active_n: bool, whether the slot has a sequence that goes on.
    """

    token_n: Array
    length_n: Array
    drawn_n: Array
    active_n: Array


class SlotConstants(NamedTuple):
    """What stays the same for the sequences in n slots.

    Attributes:
      padding_n: int32, the unused columns of the cache before the first token: the token at
        position p is in column padding + p.
      limit_n, least_n: int32, the values of `drawn_n` where the sequence ends, and before which it
        cannot end with an end token.
      ends_nE: int32, the end tokens, filled with -1.
      keys_n: uint32 [n, ...], the data of the random keys.
    """

    padding_n: Array
    limit_n: Array
    least_n: Array
    ends_nE: Array
    keys_n: Array


@partial(jax.jit, static_argnames=("decoder", "extras", "mesh"), donate_argnames=("cache",))
def decode(
    decoder: Decoder,
    params: Params,
    cache: Cache,
    state: SlotState,
    constants: SlotConstants,
    distribution: Distribution,
    steps: Array,
    enough: Array,
    seen_nV: Array | None = None,
    prompts: PromptCache | None = None,
    *,
    extras: bool,
    mesh: Mesh,
) -> tuple[Cache, jax.Array, Draws]:
    """Decodes until at most `enough` sequences go on, or one has filled its cache.

    Args:
      steps: the most tokens that are added to a sequence, at most `MOST_STEPS`.
      seen_nV: the tokens that have occurred (`penalized`), which the distributions of slots then
        heed; None if no sequence has a penalty.
      prompts: the prompts of the slots, if the cache has the columns from their last tokens on.
      extras: whether to heed `least_n` and to find the most probable tokens, which takes longer.

    Returns:
      The cache; the numbers that the host needs after every call, in a single array, which it reads
      faster than several (`Outcome`); and the draws [n, MOST_STEPS, ...] of all steps.
    """
    c, S = constants, columns_to_fill(cache, prompts)
    n, V = state.token_n.shape[0], decoder.config.vocabulary
    A = MOST_ALTERNATIVES if extras else 0
    if isinstance(distribution, SharedDistribution):
        A = distribution.alternatives
    A = min(A, V)
    keys_n = jax.random.wrap_key_data(jnp.asarray(c.keys_n))

    def decode_step(carry: tuple) -> tuple:
        step, cache, (token_n, length_n, drawn_n, active_n), drawn, seen_nV = carry
        positions_n1 = (length_n - 1)[:, None]
        # A slot whose sequence has ended reads padding, which changes no state.
        inputs = token_n[:, None], positions_n1, active_n[:, None].astype(jnp.int32)
        column_n = c.padding_n + length_n - 1
        hidden_n1D, cache = decoder.extend(params, *inputs, cache, column_n, mesh, prompts)
        logits_nV = decoder.logits(params, hidden_n1D[:, 0])
        if extras:
            early_n1 = (drawn_n < c.least_n)[:, None]
            logits_nV = without(logits_nV, jnp.where(early_n1, c.ends_nE, -1))
        if seen_nV is not None and isinstance(distribution, OwnDistributions):
            penalties = distribution.repetition_n, distribution.presence_n
            logits_nV = penalized(logits_nV, seen_nV, *penalties)
        draws = distribution.draw(logits_nV, active_n, keys_n, drawn_n, A, exact=decoder.exact)
        drawn, token_n = put(drawn, step, draws), draws.token_B
        if seen_nV is not None:
            seen_nV = seen_nV.at[jnp.arange(n), token_n].set(RESPONSE)
        length_n, drawn_n = (x + active_n.astype(jnp.int32) for x in (length_n, drawn_n))
        ended_n = jnp.any(token_n[:, None] == c.ends_nE, axis=1) | (drawn_n >= c.limit_n)
        state = SlotState(token_n, length_n, drawn_n, active_n & ~ended_n)
        return step + 1, cache, state, drawn, seen_nV

    def worth(carry: tuple) -> Array:
        # A single sum, since it synchronizes devices; it is below 0 if a sequence must not go on.
        step, _, state, *_ = carry
        fits_n = c.padding_n + state.length_n < S
        going = jnp.sum(jnp.where(state.active_n, jnp.where(fits_n, 1, -n), 0), dtype=jnp.int32)
        return (step < steps) & (going > enough)

    begin = jnp.int32(0), cache, SlotState(*map(jnp.asarray, state)), no_draws(n, A), seen_nV
    step, cache, state, drawn, _ = jax.lax.while_loop(worth, decode_step, begin)
    return divided(cache, mesh), packed(step, state, drawn), drawn


def columns_to_fill(cache: Cache, prompts: PromptCache | None) -> int:
    """Returns the number of columns, more than those of a sequence while it can be decoded.

    One column stays empty, except behind shared prompts: there every number is a power of two or
    three quarters of one.
    """
    return cache.positions_BS.shape[1] + (prompts is not None)


def no_draws(n: int, A: int) -> Draws:
    """Returns arrays for the draws of a device call; those after a sequence ended are undefined."""
    return Draws(
        jnp.zeros((n, MOST_STEPS), jnp.int32),
        jnp.zeros((n, MOST_STEPS), jnp.float32),
        jnp.zeros((n, MOST_STEPS, A), jnp.int32),
        jnp.zeros((n, MOST_STEPS, A), jnp.float32),
    )


def put(drawn: Draws, step: Array, draws: Draws) -> Draws:
    put_column = partial(jax.lax.dynamic_update_slice_in_dim, start_index=step, axis=1)
    pairs = zip(drawn, draws, strict=True)
    return Draws(*(put_column(x, new[:, None]) if x.size else x for x, new in pairs))


def without(logits_nV: Array, tokens_nE: Array) -> jax.Array:
    """Returns the logits with -inf at the given tokens of each row; -1 is no token."""
    ids_V = jnp.arange(logits_nV.shape[1], dtype=jnp.int32)
    hit_nV = jnp.zeros(logits_nV.shape, jnp.bool_)
    for e in range(tokens_nE.shape[1]):  # few; a scatter would run element by element on a CPU
        hit_nV |= ids_V[None] == tokens_nE[:, e, None]
    return jnp.where(hit_nV, -jnp.inf, logits_nV)


def in_support(
    tokens_MA: list[list[int]], logprobs_MA: list[list[float]]
) -> list[list[tuple[int, float]]]:
    """Returns pairs of tokens and log-probabilities, without those outside the support."""
    return [
        [pair for pair in zip(*both, strict=True) if pair[1] > -math.inf]
        for both in zip(tokens_MA, logprobs_MA, strict=True)
    ]


class Outcome(NamedTuple):
    """What the host reads after each device call, as NumPy arrays (`packed`)."""

    steps: int
    drawn_n: np.ndarray
    active_n: np.ndarray
    tokens_nM: np.ndarray
    logprobs_nM: np.ndarray

    @staticmethod
    def of(packed: Array) -> "Outcome":
        """Waits for a packed array and returns its parts."""
        packed_nX = np.asarray(to_host(packed))
        M = (packed_nX.shape[1] - 3) // 2
        return Outcome(
            steps=int(packed_nX[0, 0]),
            drawn_n=packed_nX[:, 1],
            active_n=packed_nX[:, 2] > 0,
            tokens_nM=packed_nX[:, 3 : 3 + M],
            logprobs_nM=packed_nX[:, 3 + M :].view(np.float32),
        )


def packed(steps: Array, state: SlotState, drawn: Draws) -> jax.Array:
    """Returns an int32 array [n, 3 + 2 M] of what `Outcome` names."""
    columns = jnp.broadcast_to(steps, state.drawn_n.shape), state.drawn_n, state.active_n
    numbers = jnp.stack([x.astype(jnp.int32) for x in columns], axis=1)
    bits_nM = jax.lax.bitcast_convert_type(drawn.logprob_B, jnp.int32)
    return jnp.concatenate([numbers, drawn.token_B, bits_nM], axis=1)
