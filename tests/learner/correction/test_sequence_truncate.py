import jax.numpy as jnp
import numpy as np

from rl4p.learner.correction.sequence_truncate import SequenceTruncate


def test_every_token_weighs_the_product_up_to_the_cap():
    """The products are 0.75, 3 (capped at 2), 0.7 (one token), and that of no token."""
    w = jnp.asarray([[1.5, 0.5], [1.5, 2.0], [0.7, 9.0], [9.0, 9.0]])
    mask = jnp.asarray([[1, 1], [1, 1], [1, 0], [0, 0]], bool)
    weights = SequenceTruncate(cap=2.0)(jnp.log(w), mask)
    np.testing.assert_allclose(weights, [[0.75] * 2, [2] * 2, [0.7, 0], [0, 0]], rtol=1e-6)
