"""Tests rotary embeddings and their scaling against values computed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.rope import LinearScaling, Llama3Scaling, rotate, rotations


def test_the_angle_is_the_position_times_a_falling_frequency():
    """With head width 4 and base 100 the frequencies are 1 and 1 / 10."""
    cos, sin = rotations(np.int32([[0, 3]]), 4, 100.0, None)
    assert cos.shape == sin.shape == (1, 2, 1, 2)
    np.testing.assert_allclose(cos[0, :, 0], [[1, 1], np.cos([3, 0.3])], rtol=1e-6)
    np.testing.assert_allclose(sin[0, :, 0], [[0, 0], np.sin([3, 0.3])], rtol=1e-6)


def test_angles_are_exact_far_from_the_beginning():
    """With a frequency in half precision the angle would be wrong by a full turn."""
    positions = np.int32([[30_000]])
    cos, _ = rotations(positions, 16, 10_000.0, None)
    expected = np.cos(30_000 * 10_000.0 ** (-np.arange(8) / 8))
    np.testing.assert_allclose(cos[0, 0, 0], expected, atol=3e-3)
    assert cos.dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_halves_of_a_head_are_turned_as_complex_numbers(dtype):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(1, 3, 2, 6)), dtype)
    cos, sin = rotations(np.int32([[0, 1, 5]]), 6, 50.0, None)
    ours = rotate(x, cos, sin)
    assert ours.dtype == x.dtype
    first, second = np.split(np.asarray(x, np.float64), 2, axis=-1)
    turned = (first + 1j * second) * (np.asarray(cos) + 1j * np.asarray(sin))
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(
        np.asarray(ours, np.float64), expected, atol=1e-6 if dtype == "float32" else 2e-2
    )
    np.testing.assert_array_equal(np.asarray(ours[:, 0], np.float32), np.float32(x[:, 0]))


def test_products_of_rotated_vectors_depend_on_their_distance_alone():
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def product(i, j):
        a, b = (
            rotate(x, *rotations(np.int32([[position]]), 8, 10_000.0, None))
            for x, position in ((q, i), (k, j))
        )
        return float(jnp.sum(a * b))

    assert product(7, 4) == pytest.approx(product(3, 0), abs=1e-5)
    assert abs(product(7, 4) - product(4, 7)) > 1e-3


def test_linear_scaling_divides_positions():
    plain, scaled = (
        rotations(np.int32([[position]]), 8, 10_000.0, scaling)
        for position, scaling in ((3, None), (12, LinearScaling(factor=4.0)))
    )
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_llama3_scaling_by_hand():
    """In 64 positions 4 turns or more stay, up to 1 turn is divided by 8, 2.5 is halfway."""
    scaling = Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=64
    )
    turns = np.array([10, 4, 2.5, 1, 0.1])
    scaled = scaling(turns * 2 * np.pi / 64) * 64 / (2 * np.pi)
    np.testing.assert_allclose(scaled, [10, 4, 2.5 * (0.5 + 0.5 / 8), 1 / 8, 0.1 / 8])
