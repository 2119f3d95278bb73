"""Tests the gated delta rule against a loop over tokens; `make parity` compares the torch code."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.decoder_config import DeltaConfig
from rl4p.model.mixers import delta
from rl4p.model.mixers.convolution import sequence_numbers
from rl4p.model.mixers.delta import GatedDelta, chunked, inverse, one_step
from rl4p.model.products import INIT, Projection

K, G, KEY, VALUE = 2, 3, 4, 5
OPTIONS = DeltaConfig(key_heads=K, value_heads=K * G, key_width=KEY, value_width=VALUE)
MIXER = GatedDelta(
    OPTIONS,
    12,
    1e-6,
    jnp.dtype("float32"),
    partial(Projection, use_bias=False, dtype=jnp.dtype("float32"), kernel_init=INIT),
)


def arrays(B, T, seed=0, decay=1.0):
    random = np.random.default_rng(seed)
    q, k = random.normal(size=(2, B, T, K, KEY))
    v = random.normal(size=(B, T, K * G, VALUE))
    g = -decay * random.exponential(size=(B, T, K * G))
    strength = random.uniform(size=(B, T, K * G))
    memory = random.normal(size=(B, K * G, KEY, VALUE))
    return [np.float32(x) for x in (q, k, v, g, strength, memory)]


def by_loop(q, k, v, g, strength, memory, segments):
    """Returns y and the memory at the end, token by token in float64."""
    q, k = (x / np.sqrt(np.sum(np.square(x), -1, keepdims=True) + 1e-6) for x in (q, k))
    q = q * KEY**-0.5
    y, memory = np.zeros(v.shape), np.float64(memory)
    for row, ids in enumerate(segments):
        current = None
        for t, number in enumerate(ids):
            if number == 0:
                continue
            if current not in (None, number):
                memory[row] = 0
            current = number
            for h in range(K * G):
                key, query = k[row, t, h // G], q[row, t, h // G]
                faded = np.exp(g[row, t, h]) * memory[row, h]
                u = strength[row, t, h] * (v[row, t, h] - key @ faded)
                memory[row, h] = faded + np.outer(key, u)
                y[row, t, h] = query @ memory[row, h]
    return y, memory


def packed_segments(T):
    """Returns rows of one sequence, of many, and with padding at either end and in between."""
    places = np.arange(T)
    return np.int32(
        [
            np.ones(T),
            np.where(places < T // 3, 0, 1),
            np.where(places < T // 2, 1, 0),
            np.where(places % 7 == 3, 0, 1 + places // 11),
            np.where(places < 3, 0, -(1 + places // 70)),
            np.zeros(T),
        ]
    )


def masked(arguments, segments):
    *others, g, strength, memory = arguments
    own = (segments != 0)[:, :, None]
    return (
        *others,
        np.where(own, g, 0),
        np.where(own, strength, 0),
        sequence_numbers(segments),
        memory,
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("T", [2, 5, 64, 150])
def test_chunks_equal_a_loop_over_tokens(T):
    segments = packed_segments(T)
    arguments = arrays(len(segments), T)
    expected, expected_memory = by_loop(*arguments, segments)
    y, memory = jax.jit(chunked)(*masked(arguments, segments))
    own = segments != 0
    np.testing.assert_allclose(y[own], expected[own], atol=2e-5)
    np.testing.assert_allclose(memory, expected_memory, atol=2e-5)
    assert np.isfinite(y).all()


def test_one_token_at_a_time_equals_chunks():
    segments = np.int32(packed_segments(20) != 0)
    *arguments, memory = arrays(len(segments), 20, seed=1)
    *parts, _, first = masked((*arguments, memory), segments)
    expected, expected_memory = jax.jit(chunked)(*parts, sequence_numbers(segments), first)
    for t in range(20):
        y, memory = jax.jit(one_step)(*(x[:, t : t + 1] for x in parts), memory)
        own = segments[:, t] != 0
        np.testing.assert_allclose(y[own, 0], expected[own, t], atol=1e-5)
    np.testing.assert_allclose(memory, expected_memory, atol=1e-5)
    # Padding leaves even the last digit.
    np.testing.assert_array_equal(memory[-1], first[-1])
    np.testing.assert_array_equal(expected_memory[-1], first[-1])


@pytest.mark.slow
def test_the_gradient_is_that_of_the_loop():
    """The loop as a scan, differentiated by JAX."""
    T, segments = 70, packed_segments(70)[:1]
    arguments = arrays(1, T, seed=2)
    weight = np.float32(np.random.default_rng(3).normal(size=(1, T, K * G, VALUE)))

    def by_steps(*arguments):
        *parts, memory = arguments

        def next_token(memory, now):
            y, memory = one_step(*(x[:, None] for x in now), memory)
            return memory, y[:, 0]

        memory, y = jax.lax.scan(next_token, memory, [x.swapaxes(0, 1) for x in parts])
        return y.swapaxes(0, 1), memory

    def loss(rule, *arguments):
        y, memory = rule(*arguments)
        return jnp.sum(y * weight) + jnp.sum(jnp.sin(memory))

    def rule(*arguments):
        return delta.delta_rule(*arguments[:-1], sequence_numbers(segments), arguments[-1])

    ours, expected = (
        jax.jit(jax.grad(partial(loss, each), range(6)))(*arguments) for each in (rule, by_steps)
    )
    for our, their in zip(ours, expected, strict=True):
        assert np.abs(their).max() > 0.1
        np.testing.assert_allclose(our, their, atol=1e-4)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_decays_and_equal_keys_stay_finite(dtype):
    """Keys that repeat make powers of L grow; decays of a chunk underflow or do nothing."""
    *(q, k, v), g, strength, memory = arrays(2, 256, seed=4, decay=1.0)
    k[:] = k[:1, :1]
    g[0], g[1], strength[:] = -60, -1e-4, 1
    segments = np.ones((2, 256), np.int32)

    def total(q, k, v, g, strength, memory):
        given = (
            *(x.astype(dtype) for x in (q, k, v)),
            g,
            strength,
            sequence_numbers(segments),
            memory,
        )
        return jnp.sum(jnp.square(delta.delta_rule(*given)[0].astype(jnp.float32)))

    given = *(x.astype(dtype) for x in (q, k, v)), g, strength, sequence_numbers(segments), memory
    y, _ = jax.jit(chunked)(*given)
    expected, _ = by_loop(q, k, v, g, strength, memory, segments)
    close = {"atol": 1e-4} if dtype == "float32" else {"atol": 0.1}
    np.testing.assert_allclose(np.float32(y), expected, **close)
    for gradient in jax.jit(jax.grad(total, range(6)))(q, k, v, g, strength, memory):
        assert np.isfinite(gradient).all()


def test_the_inverse_of_a_triangular_matrix():
    lower = np.tril(np.random.default_rng(5).normal(size=(3, 16, 16)), -1).astype(np.float32)
    np.testing.assert_allclose(
        inverse(lower) @ (np.eye(16) + lower), np.broadcast_to(np.eye(16), lower.shape), atol=1e-3
    )


@pytest.fixture(scope="module")
def params():
    """Returns parameters whose projections and convolutions are not small."""
    x, segments = np.zeros((1, 2, 12), np.float32), np.ones((1, 2), np.int32)
    fresh = jax.jit(MIXER.init)(jax.random.key(0), x, segments)["params"]
    return jax.tree.map(lambda x: x * 20 if x.ndim == 2 else x, fresh)


def run(params, *arguments):
    return jax.jit(MIXER.apply)({"params": params}, *arguments)


@pytest.mark.slow
def test_packed_rows_equal_rows_of_one_sequence(params):
    x = np.float32(np.random.default_rng(6).normal(size=(1, 90, 12)))
    segments = np.int32(np.repeat([[0, 4, 0, 2, 9, 0]], 15, axis=1))
    y, state = run(params, x, segments)
    for number in (4, 2, 9):
        here = np.flatnonzero(segments[0] == number)
        alone, last = run(params, x[:, here], segments[:, here])
        np.testing.assert_allclose(y[:, here], alone, atol=3e-5)
        assert np.std(alone) > 0.1
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), state, last)


@pytest.mark.slow
def test_a_row_goes_on_with_its_state(params):
    """Rows padded left, right and not at all, in calls of 9, 1 and 12 tokens."""
    x = np.float32(np.random.default_rng(7).normal(size=(3, 22, 12)))
    segments = np.ones((3, 22), np.int32)
    segments[0, :4], segments[1, 15:] = 0, 0
    expected, expected_state = run(params, x, segments)
    state, parts = MIXER.empty_state(OPTIONS, 3), []
    for start, end in ((0, 9), (9, 10), (10, 22)):
        y, state = run(params, x[:, start:end], segments[:, start:end], state)
        parts.append(y)
    own = segments != 0
    np.testing.assert_allclose(np.concatenate(parts, axis=1)[own], expected[own], atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), state, expected_state)


def test_heads_of_values_share_heads_of_keys():
    with pytest.raises(ValueError, match="value_heads 3 must be a multiple of key_heads 2"):
        DeltaConfig(key_heads=2, value_heads=3, key_width=4, value_width=4)
