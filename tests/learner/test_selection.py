import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.selection import largest, share_count

VALUES = jnp.asarray([[3.0, 1.0, 2.0], [2.0, np.nan, 9.0]])
CANDIDATES = jnp.asarray([[1, 1, 1], [1, 0, 0]], bool)


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (1, [[1, 0, 0], [0, 0, 0]]),
        (2, [[1, 0, 1], [1, 0, 0]]),  # two tokens are equal: both are chosen
        (3, [[1, 0, 1], [1, 0, 0]]),
        (4, [[1, 1, 1], [1, 0, 0]]),
        (9, [[1, 1, 1], [1, 0, 0]]),
    ],
)
def test_the_largest_of_the_candidates(count, chosen):
    np.testing.assert_array_equal(largest(VALUES, CANDIDATES, jnp.int32(count)), chosen)


def test_no_candidates():
    assert not largest(VALUES, jnp.zeros_like(CANDIDATES), jnp.int32(1)).any()


@pytest.mark.parametrize(
    ("tokens", "share", "count"), [(4, 0.5, 2), (4, 0.7, 2), (10, 0.7, 7), (4, 0.1, 1), (0, 0.5, 1)]
)
def test_a_share_is_rounded_down_to_at_least_one(tokens, share, count):
    assert share_count(jnp.arange(12).reshape(3, 4) < tokens, share) == count
