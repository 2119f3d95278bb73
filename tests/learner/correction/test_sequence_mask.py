import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.correction.sequence_mask import SequenceMask

# Geometric means: 1 (of 2 and 1/2), 1.2 (of 1.44 and 1), 0.7 (one token), and no token.
W = jnp.asarray([[2.0, 0.5], [1.44, 1.0], [0.7, 9.0], [9.0, 9.0]])
MASK = jnp.asarray([[1, 1], [1, 1], [1, 0], [0, 0]], bool)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({"low": 0.75}, [[1, 1], [0, 0], [0, 0], [0, 0]]),  # padding does not count in the mean
        ({"high": 1.21}, [[1, 1], [1, 1], [0, 0], [0, 0]]),
        ({"low": 0.69, "high": 1.01}, [[1, 1], [0, 0], [1, 0], [0, 0]]),
        ({"high": 1.21, "weighted": True}, [[2, 0.5], [1.44, 1], [0, 0], [0, 0]]),
    ],
)
def test_a_sequence_stays_or_goes_by_its_geometric_mean(options, expected):
    np.testing.assert_allclose(SequenceMask(**options)(jnp.log(W), MASK), expected, rtol=1e-6)


def test_weights_of_tokens_have_no_gradient_either():
    """A token of a kept sequence is weighed by its own w, which is a constant."""
    correction = SequenceMask(low=0.5, high=2.0, weighted=True)
    slope = jax.grad(lambda x: correction(x, MASK[:1]).sum())(jnp.log(W[:1]))
    np.testing.assert_array_equal(slope, 0)
