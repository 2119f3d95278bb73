"""Tests Mamba-2 against its recurrence, one token after another."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.decoder_config import MambaConfig
from rl4p.model.mixers import mamba
from rl4p.model.mixers.mamba import Mamba, recurrence

WIDTH = 24
SHAPE = MambaConfig(heads=4, head_width=6, groups=2, state=5, least_step=0.01, most_step=0.9)


@pytest.fixture(scope="module", autouse=True)
def short_chunks():
    """Chunks of 8, so that short sequences have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba, "CHUNK", 8)
        yield


def mixer(**options):
    dense = partial(nn.Dense, dtype=jnp.float32)
    return Mamba(SHAPE, WIDTH, 1e-5, jnp.float32, dense, **options)


@pytest.fixture(scope="module")
def module():
    """Returns the function of a mixer with noisy parameters, and these."""
    x, ones = jnp.zeros((1, 1, WIDTH)), jnp.ones((1, 1), jnp.int32)
    fresh = jax.jit(mixer().init)(jax.random.key(0), x, ones)["params"]
    noise = np.random.default_rng(1)
    params = jax.tree.map(lambda x: np.float32(x + noise.normal(0, 0.3, x.shape)), fresh)
    apply = jax.jit(lambda params, *given: mixer().apply({"params": params}, *given))
    return apply, params


def empty(rows):
    return Mamba.empty_state(SHAPE, rows)


def inputs(rows, length, seed=2):
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, length, WIDTH)).astype(np.float32)


def close(ours, theirs, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5), ours, theirs)


@jax.jit
def one_by_one(params, x, state):
    """Returns the outputs of one sequence, token by token, and its last state."""

    def step(state, x_BD):
        one = jnp.ones((len(x_BD), 1), jnp.int32)
        y, state = mixer().apply({"params": params}, x_BD[:, None], one, state)
        return state, y[:, 0]

    state, y = jax.lax.scan(step, state, x.swapaxes(0, 1))
    return y.swapaxes(0, 1), state


def test_chunks_are_the_recurrence():
    random = np.random.default_rng(0)
    B, T, G, N, H, h = 2, 21, 2, 5, 4, 3
    q, k, v, state, decay = (
        random.normal(size=shape).astype(np.float32)
        for shape in ((B, T, G, N), (B, T, G, N), (B, T, H, h), (B, H, h, N), (H,))
    )
    steps, ones = random.uniform(size=(B, T, H)).astype(np.float32), np.ones((B, T), np.int32)
    ours = jax.jit(recurrence)(q, k, v, steps, decay, ones, state)
    q, k, v, steps, decay = (np.array(x, np.float64) for x in (q, k, v, steps, decay))
    S, expected = np.array(state, np.float64), []
    for t in range(T):
        a = np.exp(-np.exp(decay) * steps[:, t])
        key, query = (np.repeat(x[:, t], H // G, axis=1) for x in (k, q))
        S = a[:, :, None, None] * S
        S = S + (steps[:, t, :, None] * v[:, t])[..., None] * key[:, :, None]
        expected.append(np.einsum("BHhN,BHN->BHh", S, query))
    close(ours, (np.stack(expected, 1), S), atol=1e-5)


def test_chunks_and_steps_are_one_sequence(module):
    apply, params = module
    x, ones = inputs(2, 21), np.ones((2, 21), np.int32)
    expected = one_by_one(params, x, empty(2))
    close(apply(params, x, ones), expected)
    state, parts = empty(2), []
    for start, end in ((0, 9), (9, 12), (12, 21)):
        part, state = apply(params, x[:, start:end], ones[:, start:end], state)
        parts.append(part)
    close((jnp.concatenate(parts, 1), state), expected)


@pytest.mark.slow
def test_padding_and_packing_change_nothing(module):
    """Rows have sequences with gaps before, between and behind; the first may continue a state."""
    apply, params = module
    x, length = inputs(3, 30, seed=3), (9, 1, 12)
    _, before = one_by_one(params, inputs(1, 7), empty(1))
    starts = np.zeros((3, 3), int)
    starts[:] = (0, 9, 10), (4, 14, 17), (2, 11, 14)
    segments = np.zeros((3, 30), np.int32)
    for row, places in enumerate(starts):
        for i, start in enumerate(places):
            segments[row, start : start + length[i]] = (5, 2, 5)[i]
    segments[1, 7] = segments[2, 5] = 0  # padding within a sequence
    begin = jax.tree.map(lambda x: np.repeat(x, 3, axis=0), before)
    packed, after = apply(params, x, segments, begin)
    for row, places in enumerate(starts):
        for i, start in enumerate(places):
            here = np.arange(start, start + length[i])
            here = here[segments[row, here] != 0]
            alone, state = one_by_one(params, x[row : row + 1, here], empty(1) if i else before)
            close(packed[row, here], alone[0])
        close(jax.tree.map(lambda x, row=row: np.asarray(x)[row : row + 1], after), state)
    assert np.isfinite(packed).all()


@pytest.mark.slow
def test_a_row_of_padding_keeps_its_state(module):
    apply, params = module
    _, before = one_by_one(params, inputs(1, 7), empty(1))
    for length in (1, 20):
        y, after = apply(params, inputs(1, length), np.zeros((1, length), np.int32), before)
        close(after, before, atol=0)
        assert np.isfinite(y).all()


@pytest.mark.slow
def test_gradients_are_those_of_steps(module):
    _, params = module
    x = inputs(1, 19)
    segments = np.int32([[0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 3, 3, 3, 3, 3, 3, 0]])

    def packed(params, x):
        y, _ = mixer().apply({"params": params}, x, segments)
        return jnp.sum(jnp.where((segments != 0)[..., None], jnp.sin(y), 0))

    def stepwise(params, x):
        parts = (x[:, segments[0] == segment] for segment in (1, 2, 3))
        return sum(jnp.sum(jnp.sin(one_by_one(params, part, empty(1))[0])) for part in parts)

    ours, expected = (jax.jit(jax.grad(f, (0, 1)))(params, x) for f in (packed, stepwise))
    close(ours, expected, atol=1e-4)
    assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(expected))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_decays_stay_finite(module, dtype):
    _, params = module
    params = params | {"decay": params["decay"] + 9, "step_bias": params["step_bias"] + 30}
    config = MambaConfig(heads=4, head_width=6, groups=2, state=5)
    fast = Mamba(config, WIDTH, 1e-5, dtype, partial(nn.Dense, dtype=dtype))

    def loss(params, x):
        y, state = fast.apply({"params": params}, x, np.ones(x.shape[:2], np.int32))
        return jnp.sum(jnp.square(y.astype(jnp.float32))) + jnp.sum(state[0])

    gradients = jax.jit(jax.grad(loss, (0, 1)))(params, inputs(1, 20).astype(dtype))
    assert all(np.isfinite(x.astype(jnp.float32)).all() for x in jax.tree.leaves(gradients))


def test_steps_are_cut_at_both_limits_and_0_for_padding(module):
    _, params = module
    x = jnp.full((1, 3, 4), -30.0).at[0, 1].set(30.0)
    steps = mixer().apply({"params": params}, x, np.int32([[1, 1, 0]]), method="steps")
    np.testing.assert_allclose(steps[0], np.repeat([[0.01], [0.9], [0.0]], 4, axis=1), rtol=1e-6)


@pytest.mark.slow
def test_fresh_steps_are_within_their_limits():
    steps = nn.softplus(mamba.fresh_steps(jax.random.key(0), (1000,)))
    assert 0.9e-3 < steps.min() < 1.2e-3
    assert 0.08 < steps.max() < 0.101
