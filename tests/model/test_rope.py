"""Tests rotary embeddings and their scaling against values computed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    YarnScaling,
    rotate,
    rotations,
)


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


def test_llama3_scaling_blends_nothing_if_its_two_factors_are_equal():
    """As in Llama 4."""
    scaling = Llama3Scaling(
        factor=16.0, low_frequency_factor=1.0, high_frequency_factor=1.0, original_max_positions=64
    )
    turns = np.array([10, 1, 0.9])
    scaled = scaling(turns * 2 * np.pi / 64) * 64 / (2 * np.pi)
    np.testing.assert_allclose(scaled, [10, 1, 0.9 / 16])


@pytest.mark.parametrize("truncated", [False, True])
def test_yarn_scaling_by_hand(truncated):
    """With frequencies 2^-i, 64 positions make 8 x 2^-i turns or so, here exactly.

    4 turns are at index 1.5 and 1/2 a turn at 4.5; truncated, at 1 and 5.
    """
    scaling = YarnScaling(
        factor=8.0,
        original_max_positions=64,
        fast_turns=64 / (2 * np.pi) * 2**-1.5,
        slow_turns=64 / (2 * np.pi) * 2**-4.5,
        truncated=truncated,
    )
    frequency = 2.0 ** -np.arange(8)
    first, last = (1, 5) if truncated else (1.5, 4.5)
    s = np.clip((np.arange(8) - first) / (last - first), 0, 1)
    assert s.min() == 0
    assert s.max() == 1
    np.testing.assert_allclose(scaling(frequency) / frequency, 1 - s + s / 8, rtol=1e-6)


def test_a_magnitude_multiplies_what_is_rotated():
    """LongRoPE divides each frequency by its factor; the dynamic scaling changes none."""
    scaling = LongScaling(
        factors=(2.0, 5.0),
        long_factors=(3.0, 7.0),
        original_max_positions=64,
        max_positions=512,
        magnitude=1.5,
    )
    places = np.int32([[0, 3]])
    cos, sin = rotations(places, 4, 100.0, scaling)
    np.testing.assert_allclose(cos[0, :, 0], [[1.5] * 2, 1.5 * np.cos([1.5, 0.06])], rtol=1e-6)
    np.testing.assert_allclose(sin[0, :, 0], [[0] * 2, 1.5 * np.sin([1.5, 0.06])], rtol=1e-6)
    plain, dynamic = (rotations(places, 4, 100.0, x) for x in (None, DynamicScaling(factor=9.0)))
    np.testing.assert_array_equal(plain, dynamic)


def test_a_part_of_a_head_is_turned_and_neighbours_may_be_pairs():
    """The last two of six elements stay; (1, 2) and (3, 4) turn, or (1, 3) and (2, 4)."""
    x = np.float32([1, 2, 3, 4, 5, 6]).reshape(1, 1, 1, 6)
    cos, sin = (np.float32(y).reshape(1, 1, 1, 2) for y in ([0, 1], [1, 0]))
    halves, neighbours = (rotate(x, cos, sin, interleaved=flag).ravel() for flag in (False, True))
    np.testing.assert_array_equal(halves, [-3, 2, 1, 4, 5, 6])
    np.testing.assert_array_equal(neighbours, [-2, 1, 3, 4, 5, 6])


@pytest.mark.slow
def test_proportional_scaling_leaves_the_lowest_frequencies_out():
    scaled = ProportionalScaling(part=0.5, factor=2.0)(np.array([1.0, 0.5, 0.25, 0.125]))
    np.testing.assert_array_equal(scaled, [0.5, 0.25, 0, 0])
    assert not ProportionalScaling(part=0.0)(np.ones(4)).any()
    assert ProportionalScaling(part=0.99)(np.ones(4)).tolist() == [1, 1, 1, 0]
