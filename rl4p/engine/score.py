"""The log-probabilities of given tokens."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.distributed.mesh import Mesh
from rl4p.engine.cache import read
from rl4p.model.decoder import Decoder
from rl4p.model.policy import padded_width

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
        logprobs_CV = jax.nn.log_softmax(decoder.logits(params, hidden_CD), axis=-1)
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
