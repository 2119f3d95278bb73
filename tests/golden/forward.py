"""Functions that golden files and parity tests compare: logits, gradients and greedy tokens."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.distributed.partition import for_decoding
from rl4p.model.pattern import places
from tests.golden.cases import noise, sequences, to_tensors

SLOTS = 80  # of the cache


def rows(sequences, width):
    """Returns tokens, positions and segment ids [B, width], padded right."""
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
    """Returns the gradient of the mean cross entropy of the next token."""

    def loss(params):
        places = (jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape),)
        logits_BTV = decoder.logits(
            params, decoder.hidden(params, tokens_BT, *places, jnp.ones_like(tokens_BT))
        )
        logprobs_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        return -jnp.mean(jnp.take_along_axis(logprobs_BTV, tokens_BT[:, 1:, None], axis=-1))

    return jax.grad(loss)(params)


@partial(jax.jit, static_argnums=0, static_argnames="mesh")
def extend(decoder, params, tokens, positions, segments, cache, slot, mesh=None):
    """Returns the logits of more tokens, and the cache."""
    row = (tokens, positions, segments)
    hidden_BTD, cache = decoder.extend(params, *row, cache, slot, mesh)
    return decoder.logits(params, hidden_BTD), cache


def greedy(decoder, params, prompt_T, count):
    """Returns the `count` most likely next tokens, decoded one by one with a cache."""
    params = for_decoding(params, decoder.dtype, places(decoder.config))
    cache = decoder.empty_cache(1, SLOTS)
    tokens = list(prompt_T)
    for slot in range(len(prompt_T) + count - 1):
        row = (np.int32([[x]]) for x in (tokens[slot], slot, 1))
        logits_BTV, cache = extend(decoder, params, *row, cache, slot)
        if slot == len(tokens) - 1:
            tokens.append(int(np.argmax(logits_BTV)))
    return tokens[len(prompt_T) :]


def assert_gradient(decoder, params, golden):
    """Compares each tensor's gradient by its norm, and by its product with noise seeded by name."""
    ours = to_tensors(decoder.config, gradient(decoder, params, np.int32(sequences()[-1])[None]))
    names = sorted(ours)
    norms = np.array([np.linalg.norm(ours[name]) for name in names])
    products = np.array([np.vdot(ours[name], noise(name, ours[name].shape)) for name in names])
    np.testing.assert_allclose(norms, golden["gradient_norms"], rtol=1e-4, atol=1e-7)
    scale = golden["gradient_norms"] + 1e-7
    np.testing.assert_allclose(products / scale, golden["gradient_products"] / scale, atol=1e-3)
