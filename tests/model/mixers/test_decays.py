"""Tests sums of decays, and that both recurrences use them: a short decay may follow long ones."""

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.mixers.decays import between, running_sums
from rl4p.model.mixers.delta import chunked
from rl4p.model.mixers.mamba import recurrence

T = 64


def mixed_decays():
    """Returns decays of 64 tokens, of which half forget all and half next to nothing."""
    random = np.random.default_rng(0)
    long = random.random(T) < 0.5
    return np.float32(np.where(long, -100 * random.random(T), -0.01 * random.random(T)))


def test_what_is_left_keeps_its_digits():
    logs = mixed_decays()
    exact = np.cumsum(np.float64(logs))
    assert exact[-1] < -1000
    expected = np.tril(np.exp(np.minimum(exact[:, None] - exact, 0)))
    left = between(running_sums(logs), np.bool_(True))
    np.testing.assert_allclose(left, expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(left, expected, atol=1e-7)
    sums = np.cumsum(logs)
    assert np.abs(np.exp(np.diff(sums)) - np.diag(expected, -1)).max() > 1e-5


def test_gradients_keep_them_too_and_nothing_overflows():
    weight = np.random.default_rng(1).normal(size=(T, T))
    logs = mixed_decays()

    def total(logs):
        return jnp.sum(between(running_sums(logs), np.bool_(True)) * np.float32(weight))

    sums = np.cumsum(np.float64(logs))
    slopes = np.tril(np.exp(np.minimum(sums[:, None] - sums, 0)) * np.float32(weight), -1)
    expected = [np.sum(slopes[t:, :t]) for t in range(T)]
    np.testing.assert_allclose(jax.grad(total)(logs), expected, atol=2e-6)
    left = between(running_sums(np.float32([-0.5, -1e30, -0.5])), np.bool_(True))
    np.testing.assert_allclose(left, [[1, 0, 0], [0, 1, 0], [0, np.exp(-0.5), 1]], rtol=1e-7)


def memory_and_reads():
    """Returns inputs of one head, and the results of a delta rule and of Mamba-2 in float64."""
    random, logs = np.random.default_rng(2), mixed_decays()
    q, k, v = (np.float32(x) for x in random.normal(size=(3, T, 4)))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return q, k, v, logs


def test_a_gated_delta_rule_with_short_decays_after_long_ones():
    q, k, v, logs = memory_and_reads()
    memory, expected = np.zeros((4, 4)), []
    q64, k64 = (x / np.sqrt(np.sum(np.float64(x) ** 2, -1, keepdims=True) + 1e-6) for x in (q, k))
    for t in range(T):
        memory = np.exp(np.float64(logs[t])) * memory
        memory = memory + np.outer(k64[t], 0.5 * (v[t] - k64[t] @ memory))
        expected.append(q64[t] @ memory / 2)
    heads = (x[None, :, None] for x in (q, k, v, logs, np.full(T, 0.5, np.float32)))
    one = np.zeros((1, T), np.int32)
    ours, last = jax.jit(chunked)(*heads, one, np.zeros((1, 1, 4, 4), np.float32))
    np.testing.assert_allclose(ours[0, :, 0], expected, atol=1e-6)
    np.testing.assert_allclose(last[0, 0], memory, atol=1e-6)


def test_mamba_with_short_decays_after_long_ones():
    q, k, v, logs = memory_and_reads()
    state, expected = np.zeros((4, 4)), []
    for t in range(T):
        state = np.exp(np.float64(logs[t])) * state - logs[t] * np.outer(v[t], k[t])
        expected.append(state @ q[t])
    heads = (x[None, :, None] for x in (q, k, v, -logs))
    ones = np.ones((1, T), np.int32)
    start = np.zeros((1, 1, 4, 4), np.float32)
    ours, last = jax.jit(recurrence)(*heads, np.zeros(1, np.float32), ones, start)
    limit = 3e-7 * np.abs(expected).max()
    np.testing.assert_allclose(ours[0, :, 0], expected, atol=limit)
    np.testing.assert_allclose(last[0, 0], state, atol=limit)
