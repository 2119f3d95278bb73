import jax.numpy as jnp
import numpy as np

from rl4p.learner.correction.token_mask import TokenMask


def test_weights_outside_the_bounds_are_nothing():
    log_w = jnp.log(jnp.asarray([[0.49, 0.51, 1.0, 4.9, 5.1]]))
    weights = TokenMask()(log_w, jnp.asarray([[True] * 5]))
    np.testing.assert_allclose(weights, [[0, 0.51, 1, 4.9, 0]], rtol=1e-6)
    both = TokenMask(low=0.0, high=1.0)(jnp.zeros((1, 1)), jnp.asarray([[True]]))
    np.testing.assert_array_equal(both, 1)  # weights equal to a bound are kept
