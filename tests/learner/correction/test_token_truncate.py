import jax.numpy as jnp
import numpy as np

from rl4p.learner.correction.token_truncate import TokenTruncate


def test_weights_are_cut_at_the_cap():
    log_w = jnp.log(jnp.asarray([[0.25, 1.0, 1.9, 2.1]]))
    weights = TokenTruncate(cap=2.0)(log_w, jnp.asarray([[True] * 4]))
    np.testing.assert_allclose(weights, [[0.25, 1, 1.9, 2]], rtol=1e-6)
