"""The compiled program that decodes several tokens of a sequence in one step.

A step reads the newest token of a sequence and a draft of the next ones (`drafts.py`). The logits
after each of them draw a token, with the key that this token has anyway. The draws up to the first
one that differs from the draft are therefore the tokens that `decode` draws one by one, up to
rounding of the logits, and no token has to be rejected by chance, as in speculative sampling
(2211.17192).

The keys and values of rejected drafts stay in the cache, in columns behind the newest token. No
token sees them: the next step writes its own from the newest token on, before any of its tokens
attends, and positions hide the columns behind a token.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Params
from rl4p.distributed.mesh import Mesh
from rl4p.engine.cache import divided
from rl4p.engine.decode import SlotConstants, SlotState, packed
from rl4p.engine.distributions import Distribution
from rl4p.engine.drafts import Texts, look_up, put
from rl4p.model.cache import Cache
from rl4p.model.decoder import Decoder
from rl4p.model.sampling import Draws

FEW_STEPS = 16  # the most decode steps of one device call


@partial(jax.jit, static_argnames=("decoder", "k", "mesh"), donate_argnames=("cache",))
def speculate(
    decoder: Decoder,
    params: Params,
    cache: Cache,
    state: SlotState,
    constants: SlotConstants,
    distribution: Distribution,
    texts: Texts,
    steps: Array,
    enough: Array,
    *,
    k: int,
    mesh: Mesh,
) -> tuple[Cache, tuple[jax.Array, Draws, jax.Array]]:
    """Decodes until at most `enough` sequences go on, or one has nearly filled its cache.

    Args:
      cache: has k columns more than `decode` needs.
      distribution: without penalties; `SlotConstants.least_n` has no effect either.
      steps: the most decode steps, at most `FEW_STEPS`.
      k: the number of tokens of a draft.

    Returns:
      The cache; the numbers of `Outcome` and the draws, as those of `decode`; and in how many steps
      each slot got 1, 2, ... T tokens, int32 [n, T].
    """
    c, S, T = constants, cache.positions_BS.shape[1], k + 1
    n, first_n = state.token_n.shape[0], jnp.asarray(state.drawn_n)
    ones_nT, ahead_1T = jnp.ones((n, T), jnp.int32), jnp.arange(T, dtype=jnp.int32)[None]
    keys_N = jax.random.wrap_key_data(jnp.repeat(jnp.asarray(c.keys_n), T, axis=0))
    each = jax.tree.map(lambda x: jnp.repeat(x, T, axis=0) if jnp.ndim(x) else x, distribution)

    def decode_step(carry: tuple) -> tuple:
        step, cache, (token_n, length_n, drawn_n, active_n), tokens_nC, out, steps_nT = carry
        end_n, column_n = texts.begin_n + length_n, c.padding_n + length_n - 1
        draft_nk = look_up(tokens_nC, end_n, k)
        positions_nT = (length_n - 1)[:, None] + ahead_1T
        inputs = jnp.concatenate([token_n[:, None], draft_nk], axis=1), positions_nT, ones_nT
        hidden_nTD, cache = decoder.extend(params, *inputs, cache, column_n, mesh)
        logits_NV = decoder.logits(params, hidden_nTD).reshape(n * T, -1)
        number_nT = drawn_n[:, None] + ahead_1T
        draws = each.draw(logits_NV, jnp.repeat(active_n, T), keys_N, number_nT.ravel(), 0)
        drawn_nT, logprob_nT = (x.reshape(n, T) for x in (draws.token_B, draws.logprob_B))
        ended_nT = jnp.any(drawn_nT[..., None] == c.ends_nE[:, None], axis=-1)
        ended_nT |= number_nT + 1 >= c.limit_n[:, None]
        room_n1 = (S - k - c.padding_n - length_n)[:, None]
        goes_nT = ~ended_nT & (ahead_1T + 1 < room_n1)
        goes_nk = goes_nT[:, :-1] & (drawn_nT[:, :-1] == draft_nk)
        last_n = jnp.sum(jnp.cumprod(goes_nk.astype(jnp.int32), axis=1), axis=1)
        newest_n, ended_n = (
            jnp.take_along_axis(x, last_n[:, None], axis=1)[:, 0] for x in (drawn_nT, ended_nT)
        )
        count_n = jnp.where(active_n, last_n + 1, 0)
        out = tuple(
            put(x, new, drawn_n - first_n)
            for x, new in zip(out, (drawn_nT, logprob_nT), strict=True)
        )
        tokens_nC = put(tokens_nC, drawn_nT, end_n)
        steps_nT = steps_nT + (count_n[:, None] == ahead_1T + 1).astype(jnp.int32)
        token_n = jnp.where(active_n, newest_n, token_n)
        length_n, drawn_n = length_n + count_n, drawn_n + count_n
        state = SlotState(token_n, length_n, drawn_n, active_n & ~ended_n)
        return step + 1, cache, state, tokens_nC, out, steps_nT

    def worth(carry: tuple) -> Array:
        # As in `decode`: a single sum, below 0 if the cache lacks room for a sequence.
        step, _, state, *_ = carry
        fits_n = c.padding_n + state.length_n + k < S
        going = jnp.sum(jnp.where(state.active_n, jnp.where(fits_n, 1, -n), 0), dtype=jnp.int32)
        return (step < steps) & (going > enough)

    M = FEW_STEPS * T
    out = jnp.zeros((n, M), jnp.int32), jnp.zeros((n, M), jnp.float32)
    begin = jnp.int32(0), cache, SlotState(*map(jnp.asarray, state))
    carry = *begin, jnp.asarray(texts.tokens_nC), out, jnp.zeros((n, T), jnp.int32)
    step, cache, state, _, out, steps_nT = jax.lax.while_loop(worth, decode_step, carry)
    none_nM0 = jnp.zeros((n, M, 0), jnp.int32)
    drawn = Draws(*out, none_nM0, none_nM0.astype(jnp.float32))
    return divided(cache, mesh), (packed(step, state, drawn), drawn, steps_nT)
