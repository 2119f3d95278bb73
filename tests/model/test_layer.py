"""Tests norms by hand; tests/parity and tests/golden compare whole layers."""

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.layer import RMSNorm


def test_a_norm_divides_by_the_root_of_the_mean_square():
    """For 3, 4 and epsilon 12.5 the root is 5; a centered norm adds 1 to its scale."""
    x, scale = np.float32([[3, 4]]), np.float32([2, -1])
    for centered, expected in ((False, [6 / 5, -4 / 5]), (True, [9 / 5, 0])):
        norm = RMSNorm(12.5, centered)
        normed = norm.apply({"params": {"scale": scale}}, x)
        np.testing.assert_allclose(normed[0], expected, rtol=1e-6)
        fresh = norm.init(jax.random.key(0), x)["params"]["scale"]
        np.testing.assert_array_equal(fresh, [1 - centered] * 2)


def test_a_norm_may_subtract_the_mean():
    """Of 3 and 5 the mean is 4 and the variance 1; with epsilon 3 the root is 2."""
    norm = RMSNorm(3.0, without_mean=True)
    normed = norm.apply({"params": {"scale": np.float32([2, -1])}}, np.float32([[3, 5]]))
    np.testing.assert_allclose(normed[0], [-1, -0.5], rtol=1e-6)


def test_a_norm_of_half_precision_is_rounded_once():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(4, 32)), jnp.bfloat16)
    params = {"params": {"scale": jnp.asarray(random.normal(size=32), jnp.float32)}}
    exact = RMSNorm(1e-6).apply(params, x.astype(jnp.float32))
    rough = RMSNorm(1e-6).apply(params, x)
    assert rough.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rough, exact.astype(jnp.bfloat16))
