import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.aggregation import aggregation_weights

# Three sequences with 1, 3 and no loss tokens. The third does not count as a sequence.
MASK = jnp.asarray([[0, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]], bool)
ALL = ("token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant")


@pytest.mark.parametrize(
    ("aggregation", "short", "long"),
    [
        ("token_mean", 1 / 4, 1 / 4),
        ("sequence_mean_token_mean", 1 / 2, 1 / 6),
        ("sequence_mean_token_sum", 1 / 2, 1 / 2),
        ("constant", 1 / 20, 1 / 20),
    ],
)
def test_by_hand(aggregation, short, long):
    weights = aggregation_weights(MASK, aggregation, 10)
    expected = np.where(MASK, np.asarray([[short], [long], [9]]), 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("aggregation", ALL)
def test_padding_changes_no_weight_and_nothing_gives_nothing(aggregation):
    weights = aggregation_weights(MASK, aggregation, 10)
    padding = ((0, 2), (3, 5))
    padded = aggregation_weights(jnp.pad(MASK, padding), aggregation, 10)
    np.testing.assert_array_equal(padded, np.pad(weights, padding))
    np.testing.assert_array_equal(aggregation_weights(jnp.zeros_like(MASK), aggregation, 10), 0)
