"""Log-probabilities of given tokens under given parameters: one forward, no [B, T, V] array."""

from functools import partial

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

    def score_row(row: Trajectories) -> Array:
        return token_logprobs(decoder, params, jax.tree.map(lambda x: x[None], row), sampling)[0][0]

    rows = max(1, tokens_per_microbatch // trajectories.tokens_BT.shape[1])
    return jax.lax.map(score_row, trajectories, batch_size=rows)
