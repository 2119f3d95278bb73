"""What golden files and parity compare: logits, gradients and greedy tokens of a decoder."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def rows(sequences, width):
    """Tokens, positions and segment ids [B, width], padded right."""
    tokens, positions, segments = (np.zeros((len(sequences), width), np.int32) for _ in range(3))
    positions[:] = np.arange(width)
    for b, sequence in enumerate(sequences):
        tokens[b, : len(sequence)], segments[b, : len(sequence)] = sequence, 1
    return tokens, positions, segments


@partial(jax.jit, static_argnums=0)
def logits(decoder, params, tokens, positions, segments):
    return decoder.logits(params, decoder.hidden(params, tokens, positions, segments))


@partial(jax.jit, static_argnums=0)
def gradient(decoder, params, tokens_BT):
    """Of the mean cross entropy of the next token."""

    def loss(params):
        places = (jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape),)
        logits_BTV = decoder.logits(
            params, decoder.hidden(params, tokens_BT, *places, jnp.ones_like(tokens_BT))
        )
        logprobs_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        return -jnp.mean(jnp.take_along_axis(logprobs_BTV, tokens_BT[:, 1:, None], axis=-1))

    return jax.grad(loss)(params)


@partial(jax.jit, static_argnums=(0, 3))
def greedy(decoder, params, prompt_T, count):
    """The most likely next token, so many times, by a cache."""
    T = len(prompt_T)
    layers = decoder.unstack(params)

    def extend(tokens_T, cache, slot):
        positions_T = slot + jnp.arange(len(tokens_T))
        row = (tokens_T[None], positions_T[None], jnp.ones_like(tokens_T)[None])
        hidden_BTD, cache = decoder.extend(params, layers, *row, cache, slot)
        token = jnp.argmax(decoder.logits(params, hidden_BTD[0, -1]))
        return token.astype(jnp.int32), cache

    def step(carry, i):
        token, cache = carry
        return extend(token[None], cache, T + i), token

    start = extend(prompt_T, decoder.empty_cache(1, T + count), 0)
    return jax.lax.scan(step, start, jnp.arange(count))[1]
