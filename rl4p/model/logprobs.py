"""Log-probabilities of given tokens under given parameters: one forward, no [B, T, V] array."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rl4p.model.decoder import Decoder
from rl4p.sampling import sampling_logprobs
from rl4p.types import Array, Params, Sampling, Trajectories

LOGITS_PER_CHUNK = 2**24  # float32: 64 MiB of logits at a time, recomputed in the backward pass


def token_logprobs(
    decoder: Decoder, params: Params, trajectories: Trajectories, sampling: Sampling
) -> tuple[Array, Array]:
    """Scores every token of every sequence.

    Returns:
      logprobs_BT: float32 log p(token t | tokens before t), on the distribution that `sampling`
        describes, each token within its support; row by row aligned with `tokens_BT` (the shift is
        made here and nowhere else). The first column, which nothing predicts, is 0.
      entropy_BT: float32, in nats, of the distribution that token t was drawn from.
    """
    hidden_BTD = decoder.hidden(
        params, trajectories.tokens_BT, trajectories.positions_BT, trajectories.segment_ids_BT
    )
    B, T, D = hidden_BTD.shape
    hidden_ND = hidden_BTD[:, :-1].reshape(B * (T - 1), D)
    targets_N = trajectories.tokens_BT[:, 1:].reshape(B * (T - 1))

    @jax.checkpoint
    def score(hidden_CD: Array, targets_C: Array) -> tuple[Array, Array]:
        logprobs_CV = sampling_logprobs(decoder.logits(params, hidden_CD), sampling, targets_C)
        # A -inf outside the support must not meet the 0 of its probability.
        finite_CV = jnp.where(jnp.isfinite(logprobs_CV), logprobs_CV, 0.0)
        entropy_C = -jnp.sum(jnp.exp(logprobs_CV) * finite_CV, axis=-1)
        return jnp.take_along_axis(logprobs_CV, targets_C[:, None], axis=-1)[:, 0], entropy_C

    N = B * (T - 1)
    chunk = max(1, LOGITS_PER_CHUNK // decoder.config.vocabulary)
    if chunk >= N:
        logprobs_N, entropy_N = score(hidden_ND, targets_N)
    else:
        padding = -N % chunk
        hidden = jnp.pad(hidden_ND, ((0, padding), (0, 0))).reshape(-1, chunk, D)
        targets = jnp.pad(targets_N, (0, padding)).reshape(-1, chunk)
        logprobs, entropy = jax.lax.map(lambda x: score(*x), (hidden, targets))
        logprobs_N, entropy_N = logprobs.reshape(-1)[:N], entropy.reshape(-1)[:N]
    first_column = ((0, 0), (1, 0))
    return (
        jnp.pad(logprobs_N.reshape(B, T - 1), first_column),
        jnp.pad(entropy_N.reshape(B, T - 1), first_column),
    )


@partial(jax.jit, static_argnames=("decoder", "sampling", "tokens_per_microbatch"))
def score_logprobs(
    decoder: Decoder,
    params: Params,
    trajectories: Trajectories,
    sampling: Sampling,
    *,
    tokens_per_microbatch: int,
) -> Array:
    """`token_logprobs` without a gradient, so many tokens (padding included) at a time."""
    rows, T = trajectories.tokens_BT.shape
    microbatches = microbatch_count(rows, T, tokens_per_microbatch)
    parts = split_rows(trajectories, microbatches)
    logprobs = jax.lax.map(lambda part: token_logprobs(decoder, params, part, sampling)[0], parts)
    return logprobs.reshape(-1, T)[:rows]


def microbatch_count(rows: int, width: int, tokens_per_microbatch: int) -> int:
    """How many microbatches hold so many rows, of so many tokens at most and one row at least."""
    return -(-rows // max(1, tokens_per_microbatch // width))


def split_rows(tree: Any, microbatches: int) -> Any:
    """Arrays [B, ...] as [microbatches, rows, ...], filled up with rows of zeros (all padding)."""

    def split(x: Array) -> Array:
        rows_each = -(-x.shape[0] // microbatches)
        padding = microbatches * rows_each - x.shape[0]
        x = jnp.pad(x, ((0, padding),) + ((0, 0),) * (x.ndim - 1))
        return x.reshape(microbatches, rows_each, *x.shape[1:])

    return jax.tree.map(split, tree)
