import jax.numpy as jnp
import numpy as np

from rl4p.learner.correction.none import NONE


def test_every_token_of_the_mask_weighs_one():
    log_w = jnp.asarray([[0.5, -1e4, np.nan]])
    weights = NONE()(log_w, jnp.asarray([[True, True, False]]))
    np.testing.assert_array_equal(weights, [[1, 1, 0]])
    assert weights.dtype == jnp.float32
