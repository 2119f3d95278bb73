"""Log-probabilities of given tokens under given parameters: one forward, no [B, T, V] array."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl4p.model.decoder import Decoder
from rl4p.sampling import sampling_logprobs
from rl4p.types import Array, Params, Sampling, Trajectories

LOGITS_PER_CHUNK = 2**24  # float32: 64 MiB of logits at a time, recomputed in the backward pass


class TokenScores(NamedTuple):
    """What one forward says of every token of every sequence, row by row aligned with `tokens_BT`.

    The shift between a token and what predicts it is made here and nowhere else. The first column,
    which nothing predicts, is 0.

    Attributes:
      logprobs_BT: float32 log p(token t | tokens before t), on the distribution that `Sampling`
        describes, each token within its support.
      entropy_BT: float32, in nats, of the distribution that token t was drawn from.
      collision_BT: float32, the sum of its squared probabilities.
    """

    logprobs_BT: Array
    entropy_BT: Array
    collision_BT: Array


def token_scores(
    decoder: Decoder,
    params: Params,
    hidden_BTD: Array,
    trajectories: Trajectories,
    sampling: Sampling,
) -> TokenScores:
    """Scores every token, from the trunk's activations (`trunk`)."""
    B, T, D = hidden_BTD.shape
    hidden_ND = hidden_BTD[:, :-1].reshape(B * (T - 1), D)
    targets_N = trajectories.tokens_BT[:, 1:].reshape(B * (T - 1))

    @jax.checkpoint
    def score(hidden_CD: Array, targets_C: Array) -> tuple[Array, ...]:
        logprobs_CV = sampling_logprobs(decoder.logits(params, hidden_CD), sampling, targets_C)
        # A -inf outside the support must not meet the 0 of its probability.
        finite_CV = jnp.where(jnp.isfinite(logprobs_CV), logprobs_CV, 0.0)
        probs_CV = jnp.exp(logprobs_CV)
        return (
            jnp.take_along_axis(logprobs_CV, targets_C[:, None], axis=-1)[:, 0],
            -jnp.sum(probs_CV * finite_CV, axis=-1),
            jnp.sum(jnp.square(probs_CV), axis=-1),
        )

    N = B * (T - 1)
    chunk = max(1, LOGITS_PER_CHUNK // decoder.config.vocabulary)
    if chunk >= N:
        scores = score(hidden_ND, targets_N)
    else:
        padding = -N % chunk
        hidden = jnp.pad(hidden_ND, ((0, padding), (0, 0))).reshape(-1, chunk, D)
        targets = jnp.pad(targets_N, (0, padding)).reshape(-1, chunk)
        chunks = jax.lax.map(lambda x: score(*x), (hidden, targets))
        scores = tuple(x.reshape(-1)[:N] for x in chunks)
    return TokenScores(*(jnp.pad(x.reshape(B, T - 1), ((0, 0), (1, 0))) for x in scores))


def trunk(decoder: Decoder, params: Params, trajectories: Trajectories) -> Array:
    """The activations [B, T, D] that every head reads."""
    return decoder.hidden(
        params, trajectories.tokens_BT, trajectories.positions_BT, trajectories.segment_ids_BT
    )


@partial(
    jax.jit, static_argnames=("decoder", "sampling", "names", "values", "tokens_per_microbatch")
)
def score_tokens(
    decoder: Decoder,
    params: Params,
    trajectories: Trajectories,
    sampling: Sampling,
    *,
    names: tuple[str, ...] = ("logprobs",),
    values: Callable[..., Array] | None = None,
    tokens_per_microbatch: int,
) -> dict[str, Array]:
    """One forward without a gradient, so many tokens (padding included) at a time.

    Args:
      names: of `TokenScores`: logprobs, entropy, collision; and `values`.
      values: a critic's function of (decoder, params, activations, trajectories).

    Returns:
      By name, float32 [B, T].
    """
    rows, T = trajectories.tokens_BT.shape
    microbatches = microbatch_count(rows, T, tokens_per_microbatch)

    def score(part: Trajectories) -> dict[str, Array]:
        hidden_BTD = trunk(decoder, params, part)
        scores = token_scores(decoder, params, hidden_BTD, part, sampling)
        found = {name: getattr(scores, f"{name}_BT") for name in names if name != "values"}
        if values is not None:
            found["values"] = values(decoder, params, hidden_BTD, part)
        return found

    parts = jax.lax.map(score, split_rows(trajectories, microbatches))
    return {name: x.reshape(-1, T)[:rows] for name, x in parts.items()}


def microbatch_count(rows: int, width: int, tokens_per_microbatch: int, together: int = 1) -> int:
    """How many microbatches hold so many rows, of so many tokens at most.

    Each has one row at least, or as many as must stay `together` (of one group, say).
    """
    blocks = rows // together
    return -(-blocks // max(1, tokens_per_microbatch // (width * together)))


def split_rows(tree: Any, microbatches: int, together: int = 1) -> Any:
    """Arrays [B, ...] as [microbatches, rows, ...], filled up with rows of zeros (all padding)."""

    def split(x: Array) -> Array:
        rows_each = -(-x.shape[0] // (microbatches * together)) * together
        padding = microbatches * rows_each - x.shape[0]
        x = jnp.pad(x, ((0, padding),) + ((0, 0),) * (x.ndim - 1))
        return x.reshape(microbatches, rows_each, *x.shape[1:])

    return jax.tree.map(split, tree)
