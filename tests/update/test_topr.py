import numpy as np
import pytest

from rl4p.update.topr import TOPR


@pytest.mark.parametrize(
    ("advantage", "ratio", "weight"),
    [(2.0, 0.5, 1.0), (2.0, 3.0, 1.0), (-2.0, 0.5, 0.5), (-2.0, 3.0, 1.0), (-2.0, 1.0, 1.0)],
)
def test_only_bad_tokens_are_tapered(make_batch, evaluate, advantage, ratio, weight):
    batch = make_batch([[advantage]], [[-1.5 - np.log(ratio)]])
    loss_BT, extras, slope_BT = evaluate(TOPR(), [[-1.5]], batch)
    np.testing.assert_allclose(loss_BT, [[1.5 * weight * advantage]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[-weight * advantage]], rtol=1e-6)
    assert extras["tapered"].all() == (weight < 1)


def test_a_sequence_is_tapered_by_the_product_of_its_tokens(make_batch, evaluate):
    """Ratios 1/2 and 1/2 give 1/4 for both tokens. 2 and 1/4 give 1/2, even for the ratio 2."""
    batch = make_batch([[-1] * 3, [-1] * 3], [[-1] * 3] * 2, mask=[[1, 1, 0]] * 2)
    log = np.log([[0.5, 0.5, 9.0], [2.0, 0.25, 9.0]])
    slope_BT = evaluate(TOPR(level="sequence"), log - 1, batch)[2]
    np.testing.assert_allclose(slope_BT, [[0.25, 0.25, 0], [0.5, 0.5, 0]], rtol=1e-6)


def test_the_metric_counts_the_bad_tokens_that_are_tapered(make_batch, evaluate):
    """Of good and bad tokens at the ratios 1/2 and 2 only one is tapered."""
    batch = make_batch([[1, 1, -1, -1]], [[-1] * 4])
    _, extras, _ = evaluate(TOPR(), [np.log([0.5, 2, 0.5, 2]) - 1], batch)
    np.testing.assert_array_equal(extras["tapered"], [[0, 0, 1, 0]])
