"""Tests the short convolution against a loop over the tokens of each sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.mixers.convolution import causal_convolution

C, WIDTH = 5, 4
ROWS = {
    "plain": [1] * 9,
    "left": [0, 0, 0, 1, 1, 1, 1, 1, 1],
    "right": [1, 1, 1, 1, 0, 0, 0, 0, 0],
    "gaps": [0, 1, 1, 0, 0, 1, 0, 1, 1],
    "packed": [3, 3, 5, 7, 7, 7, 7, 7, 0],
    "packed with gaps": [0, 2, 0, 2, -4, 0, -4, 9, 0],
    "empty": [0] * 9,
}
SEGMENTS = np.int32([*ROWS.values()])


def arrays(seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(*SEGMENTS.shape, C))
    inputs = random.normal(size=(len(ROWS), C, WIDTH - 1))
    kernel, bias = random.normal(size=(C, WIDTH)), random.normal(size=C)
    return [np.float32(each) for each in (x, kernel, inputs, bias)]


def by_loop(x, kernel, segments, inputs, bias):
    """Returns the convolution token by token, in plain Python."""
    y = np.zeros_like(x)
    lasts = np.zeros_like(inputs)
    for row, ids in enumerate(segments):
        window, current = [*inputs[row].T], None
        for t, number in enumerate(ids):
            if number == 0:
                continue
            if current not in (None, number):
                window = [np.zeros(C, np.float32)] * (WIDTH - 1)
            current = number
            window = [*window[-(WIDTH - 1) :], x[row, t]]
            y[row, t] = bias + sum(kernel[:, j] * window[j] for j in range(WIDTH))
        lasts[row] = np.stack(window[-(WIDTH - 1) :]).T
    return y, lasts


@pytest.mark.parametrize("continued", [True, False])
def test_each_token_sees_the_tokens_of_its_own_sequence(continued):
    x, kernel, inputs, bias = arrays()
    inputs = inputs if continued else np.zeros_like(inputs)
    expected, expected_inputs = by_loop(x, kernel, SEGMENTS, inputs, bias)
    given = inputs if continued else None
    y, lasts = jax.jit(causal_convolution)(x, kernel, SEGMENTS, given, bias)
    own = SEGMENTS != 0
    np.testing.assert_allclose(y[own], expected[own], atol=1e-5)
    np.testing.assert_array_equal(lasts, expected_inputs)
    assert np.isfinite(y).all()


@pytest.mark.slow
def test_one_token_at_a_time_equals_all_at_once():
    """A step does not know the segments before it, so rows have one sequence each."""
    x, kernel, inputs, bias = arrays(1)
    segments = np.int32(SEGMENTS != 0)
    expected, expected_inputs = causal_convolution(x, kernel, segments, inputs, bias)
    for t in range(x.shape[1]):
        now = slice(t, t + 1)
        y, inputs = causal_convolution(x[:, now], kernel, segments[:, now], inputs, bias)
        own = segments[:, t] != 0
        np.testing.assert_allclose(y[own, 0], expected[own, t], atol=1e-6)
    np.testing.assert_array_equal(inputs, expected_inputs)


@pytest.mark.quick(1)
@pytest.mark.parametrize("continued", [True, False])
def test_the_gradient_is_that_of_the_sums(continued):
    """The sums are linear in each argument, so differences are exact; a move has its own rule."""
    x, kernel, inputs, bias = arrays(2)
    random = np.random.default_rng(3)
    weight = np.float32(random.normal(size=x.shape) * (SEGMENTS != 0)[:, :, None])

    def loss(*arguments):
        x, kernel, inputs = arguments
        given = inputs if continued else None
        return jnp.sum(weight * causal_convolution(x, kernel, SEGMENTS, given, bias)[0])

    arguments = [x, kernel, inputs]
    gradients = jax.grad(loss, (0, 1, 2))(*arguments)
    for i, gradient in enumerate(gradients[: 2 + continued]):
        assert np.abs(gradient).max() > 0.1
        for _ in range(4):
            step = np.float32(random.normal(size=gradient.shape))
            moved = [*arguments]
            moved[i] = moved[i] + step
            difference = loss(*moved) - loss(*arguments)
            np.testing.assert_allclose(difference, np.sum(gradient * step), atol=1e-3)


@pytest.mark.slow
def test_results_have_the_dtype_of_the_tokens():
    x, kernel, inputs, _ = arrays(4)
    y, lasts = causal_convolution(jnp.bfloat16(x), jnp.bfloat16(kernel), SEGMENTS)
    assert y.dtype == lasts.dtype == jnp.bfloat16
    _, lasts = causal_convolution(jnp.bfloat16(x), kernel, SEGMENTS, inputs)
    assert lasts.dtype == jnp.float32
