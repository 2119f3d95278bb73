"""The sampling distribution: samplers draw from it, and the trainer computes its logprobs."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Sampling
from rl4p.model.exact_sums import token_logprobs

# From this size of the vocabulary on, a token is drawn in two stages, from two random numbers. One
# for each token of a large vocabulary is a large part of a decode step on a CPU.
TWO_STAGES = 8192
ROWS = 256


def sampling_logprobs(
    logits_V: Array,
    sampling: Sampling,
    drawn: Array | None = None,
    temperature: Array | None = None,
    support_V: Array | None = None,
) -> Array:
    """Returns the log-probabilities of the distribution that tokens are drawn from.

    Args:
      logits_V: float32 [..., V].
      sampling: temperature, top-k, top-p and min-p; the other options are ignored. Temperature 0
        gives the distribution at temperature 1, whose argmax greedy decoding takes.
      drawn: int32 [...], tokens that were drawn; they always stay in the support. Rounding or an
        update may have dropped a token from top-k or top-p, and the -inf of one token would spoil
        the step.
      temperature: a scalar above 0 that replaces `sampling.temperature`; it changes without a new
        compilation. None uses `sampling.temperature`.
      support_V: bool [..., V], a recorded support in place of top-k, top-p and min-p.

    Returns:
      float32 [..., V], normalised over the support; -inf outside it. The temperature divides the
      logits before the normalisation, never after.
    """
    logits_V = sampling_logits(logits_V, sampling, drawn, temperature, support_V)
    return jax.nn.log_softmax(logits_V, axis=-1)


def sampling_logits(
    logits_V: Array,
    sampling: Sampling,
    drawn: Array | None = None,
    temperature: Array | None = None,
    support_V: Array | None = None,
) -> Array:
    """Returns what `sampling_logprobs` normalises: scaled logits, -inf outside the support."""

    def cut(logits_V: Array, threshold: Array) -> Array:
        outside_V = logits_V < threshold
        if drawn is not None:
            outside_V &= ~jax.nn.one_hot(drawn, logits_V.shape[-1], dtype=bool)
        return jnp.where(outside_V, -jnp.inf, logits_V)

    if temperature is not None:
        logits_V = logits_V / temperature
    elif sampling.temperature > 0:
        logits_V = logits_V / sampling.temperature
    if support_V is not None:
        return jnp.where(support_V, logits_V, -jnp.inf)
    if sampling.top_k > 0:
        kth = jax.lax.top_k(logits_V, min(sampling.top_k, logits_V.shape[-1]))[0][..., -1:]
        logits_V = cut(logits_V, kth)
    if sampling.top_p < 1:
        sorted_V = -jnp.sort(-logits_V, axis=-1)
        before_V = jnp.cumsum(jax.nn.softmax(sorted_V, axis=-1), axis=-1)
        # A token stays if the tokens above it have less than top_p; the first always stays.
        keep_V = jnp.roll(before_V, 1, axis=-1).at[..., 0].set(0.0) < sampling.top_p
        threshold = jnp.min(jnp.where(keep_V, sorted_V, jnp.inf), axis=-1, keepdims=True)
        logits_V = cut(logits_V, threshold)
    if sampling.min_p > 0:
        largest = jnp.max(logits_V, axis=-1, keepdims=True)
        logits_V = cut(logits_V, largest + log_share(sampling.min_p))
    return logits_V


def recorded_support(tokens_A: Array, logprobs_A: Array, vocabulary: int) -> jax.Array:
    """Returns which tokens of the vocabulary were recorded as the support: bool [..., V].

    Args:
      tokens_A: int32 [..., A], different tokens.
      logprobs_A: float32 [..., A], -inf for the tokens that are outside the support.
    """
    nothing_V = jnp.zeros((*tokens_A.shape[:-1], vocabulary), bool)
    return jnp.put_along_axis(nothing_V, tokens_A, logprobs_A > -jnp.inf, axis=-1, inplace=False)


def log_share(min_p: float) -> np.float32:
    """Returns log min_p; -inf for 0. It is computed on the host, so that all programs agree."""
    with np.errstate(divide="ignore"):
        return np.log(np.float32(min_p))


PROMPT, RESPONSE = 1, 2  # bits of `seen_BV`


def penalized(
    logits_BV: Array, seen_BV: Array, repetition_B: Array, presence_B: Array
) -> jax.Array:
    """Returns logits changed by the tokens that have occurred (`Sampling`).

    Args:
      seen_BV: uint8, with the bit `PROMPT` for tokens of the prompt, and `RESPONSE` for others.
    """
    repetition_B1, presence_B1 = repetition_B[:, None], presence_B[:, None]
    scaled_BV = jnp.where(logits_BV > 0, logits_BV / repetition_B1, logits_BV * repetition_B1)
    logits_BV = jnp.where(seen_BV > 0, scaled_BV, logits_BV)
    return logits_BV - jnp.where(seen_BV >= RESPONSE, presence_B1, 0.0)


def draw(
    logits_BV: Array,
    sampling: Sampling,
    keys_B: Array,
    t_B: Array,
    greedy: Array,
    temperature: Array | None = None,
    exact: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Draws token t_B of each row by its key folded with t; returns int32 [B] and logprobs [B]."""
    logits_BV = sampling_logits(logits_BV, sampling, temperature=temperature)
    return next_tokens(logits_BV, keys_B, t_B, greedy, exact=exact)


class Draws(NamedTuple):
    """The drawn token of each row, and the most probable tokens.

    Attributes:
      token_B: int32, the drawn tokens.
      logprob_B: their log-probabilities.
      others_BA, other_logprobs_BA: the A most probable tokens, the most probable first.
    """

    token_B: jax.Array
    logprob_B: jax.Array
    others_BA: jax.Array
    other_logprobs_BA: jax.Array


def draw_each(
    logits_BV: Array,
    temperature_B: Array,
    top_k_B: Array,
    top_p_B: Array,
    log_min_p_B: Array,
    keys_B: Array,
    t_B: Array,
    alternatives: int = 0,
    *,
    exact: bool = False,
) -> Draws:
    """Draws token t_B of each row as `draw` does, with a sampling distribution of each row's own.

    Rows of temperature 0 take the argmax. The vocabulary is sorted only if a row has top-k, top-p
    or min-p, and random numbers are generated only if a row has a temperature above 0.

    Args:
      log_min_p_B: `log_share` of each row's min-p.
      alternatives: how many of the most probable tokens to return.
    """
    greedy_B = temperature_B == 0

    def run(logits_BV: Array, *, cuts: bool, greedy: bool) -> Draws:
        logits_BV = logits_BV / jnp.where(greedy_B, 1.0, temperature_B)[:, None]
        if cuts:
            least_B1 = least_logits(logits_BV, top_k_B, top_p_B)
            largest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
            least_B1 = jnp.maximum(least_B1, largest_B1 + log_min_p_B[:, None])
            outside_BV = logits_BV < least_B1
            logits_BV = jnp.where(outside_BV, -jnp.inf, logits_BV)
        logprobs_BV = jax.nn.log_softmax(logits_BV, axis=-1)
        if greedy:
            token_B = first_of_the_largest(logits_BV)
            logprob_B = of_tokens(logprobs_BV, token_B)
            if exact:
                logprob_B = token_logprobs(logits_BV, token_B)
        else:
            token_B, logprob_B = next_tokens(logits_BV, keys_B, t_B, greedy_B, exact=exact)
        values_BA, others_BA = jax.lax.top_k(logprobs_BV, alternatives)
        return Draws(token_B, logprob_B, others_BA, values_BA)

    # One branch runs, and returns no [B, V] array, which would have to be copied.
    branches = (
        partial(run, cuts=False, greedy=True),
        partial(run, cuts=False, greedy=False),
        partial(run, cuts=True, greedy=False),
    )
    cuts = jnp.any((top_k_B > 0) | (top_p_B < 1) | (log_min_p_B > -jnp.inf))
    chosen = jnp.where(cuts, 2, jnp.where(jnp.all(greedy_B), 0, 1))
    return jax.lax.switch(chosen, branches, logits_BV)


def least_logits(logits_BV: Array, top_k_B: Array, top_p_B: Array) -> jax.Array:
    """Returns the least logit [B, 1] in each row's top-k and top-p, by sorting them once."""
    sorted_BV = -jnp.sort(-logits_BV, axis=-1)
    last_B1 = jnp.clip(top_k_B - 1, 0, logits_BV.shape[-1] - 1)[:, None]
    kth_B1 = jnp.take_along_axis(sorted_BV, last_B1, axis=-1)
    kth_B1 = jnp.where(top_k_B[:, None] > 0, kth_B1, -jnp.inf)
    # Top-p is a share of the tokens that top-k keeps, so the cut by top-k comes first.
    sorted_BV = jnp.where(sorted_BV < kth_B1, -jnp.inf, sorted_BV)
    before_BV = jnp.roll(jnp.cumsum(jax.nn.softmax(sorted_BV, axis=-1), axis=-1), 1, axis=-1)
    keep_BV = before_BV.at[:, 0].set(0.0) < top_p_B[:, None]
    least_B1 = jnp.min(jnp.where(keep_BV, sorted_BV, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(top_p_B[:, None] < 1, jnp.maximum(least_B1, kth_B1), kth_B1)


def next_tokens(
    logits_BV: Array, keys_B: Array, t_B: Array, greedy: Array, *, exact: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Draws a token of each row by its key folded with t, or takes the most probable if `greedy`.

    Returns the tokens int32 [B], and their log-probabilities by the softmax of the logits.
    """
    V = logits_BV.shape[-1]
    if exact:
        token_B = next_tokens(logits_BV, keys_B, t_B, greedy)[0]
        return token_B, token_logprobs(logits_BV, token_B)
    if V >= TWO_STAGES:
        return drawn_in_two_stages(logits_BV, keys_B, t_B, greedy)
    logprobs_BV = jax.nn.log_softmax(logits_BV, axis=-1)
    gumbel = jax.vmap(lambda key, t: jax.random.gumbel(jax.random.fold_in(key, t), (V,)))
    noisy_BV = logprobs_BV + gumbel(keys_B, t_B)
    greedy = jnp.asarray(greedy)[..., None]
    token_B = first_of_the_largest(jnp.where(greedy, logits_BV, noisy_BV))
    return token_B, of_tokens(logprobs_BV, token_B)


def of_tokens(x_BV: Array, token_B: Array) -> jax.Array:
    """Returns x[b, token_b] for each row b."""
    return jnp.take_along_axis(x_BV, token_B[:, None], axis=1)[:, 0]


def drawn_in_two_stages(
    logits_BV: Array, keys_B: Array, t_B: Array, greedy: Array
) -> tuple[jax.Array, jax.Array]:
    """Draws one of some sets of tokens by its probability, and then a token of the set.

    P(token) = P(set) P(token | set), both by inverting their distribution functions. A token of
    probability 0 is never drawn. A row with NaN gives some token, and NaN as its log-probability.

    The vocabulary is read as a matrix of `ROWS` rows, and a set is one of its columns: so a mesh
    that shards the vocabulary shards the rows, and devices exchange the sums of columns and one
    column. The sum of all normalises the log-probability too, which saves a pass over the logits.
    """
    B, V = logits_BV.shape
    two_numbers = jax.vmap(lambda key, t: jax.random.uniform(jax.random.fold_in(key, t), (2,)))
    numbers_B2 = two_numbers(keys_B, t_B)
    largest_B1 = jnp.max(logits_BV, axis=-1, keepdims=True)
    padded_BV = jnp.pad(jnp.exp(logits_BV - largest_B1), ((0, 0), (0, -V % ROWS)))
    masses_BRC = padded_BV.reshape(B, ROWS, -1)
    columns_BC = jnp.sum(masses_BRC, axis=1)
    sums_BC = jnp.cumsum(columns_BC, axis=-1)
    column_B = first_over(columns_BC, sums_BC, numbers_B2[:, 0])
    chosen_BR = jnp.take_along_axis(masses_BRC, column_B[:, None, None], axis=2)[:, :, 0]
    # Devices that share the rows exchange one array for a product, but many for a cumsum.
    up_to_RR = jnp.triu(jnp.ones((ROWS, ROWS), chosen_BR.dtype))
    sums_BR = jnp.matmul(chosen_BR, up_to_RR, precision=jax.lax.Precision.HIGHEST)
    row_B = first_over(chosen_BR, sums_BR, numbers_B2[:, 1])
    drawn_B = jnp.minimum(row_B * masses_BRC.shape[2] + column_B, V - 1)
    token_B = jnp.where(greedy, first_of_the_largest(logits_BV), drawn_B)
    shifted_B = of_tokens(logits_BV, token_B) - largest_B1[:, 0]
    # jnp.sum(columns_BC) would read all logits again: XLA joins it with the sum above.
    return token_B, shifted_B - jnp.log(sums_BC[:, -1])


def first_over(masses_BN: Array, sums_BN: Array, number_B: Array) -> jax.Array:
    """Returns the first index at which the sum so far is over a share of the whole, int32 [B].

    The mass there is above 0. Indices without mass are left out, because rounding can make the sums
    (of the masses up to each index) rise at them. The shares `number_B` are in [0, 1).
    """
    N = masses_BN.shape[-1]
    sums_BN = jnp.where(masses_BN > 0, sums_BN, 0.0)
    over_BN = sums_BN > number_B[:, None] * jnp.max(sums_BN, axis=-1, keepdims=True)
    return jnp.min(jnp.where(over_BN, jnp.arange(N, dtype=jnp.int32), N - 1), axis=-1)


def first_of_the_largest(x_BV: Array) -> jax.Array:
    """Returns jnp.argmax along V, int32 [B]; the last index if all values are NaN.

    On a CPU, argmax compares pairs of value and index one by one, but max and min are vectorized.
    """
    V = x_BV.shape[-1]
    largest_B1 = jnp.max(x_BV, axis=-1, keepdims=True)
    places_BV = jnp.where(x_BV == largest_B1, jnp.arange(V, dtype=jnp.int32), V - 1)
    return jnp.min(places_BV, axis=-1)
