import numpy as np

from rl4p.update.luspo import LUSPO


def test_a_sequence_weighs_its_length(make_batch, evaluate):
    """At ratio 1 the losses are -1 x 3 and 2 x 1, over two sequences; each slope is -A / 2."""
    batch = make_batch([[1] * 3, [-2] * 3], [[-1] * 3] * 2, mask=[[1, 1, 1], [1, 0, 0]])
    loss_BT, _, slope_BT = evaluate(LUSPO(), [[-1] * 3] * 2, batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), -0.5, rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[-0.5] * 3, [1, 0, 0]], rtol=1e-6)


def test_the_ratio_is_the_geometric_mean_and_is_clipped(make_batch, evaluate):
    """Log-ratios 0.2 and 0.4 give 1.3498588; the paper's bounds are 0.998 and 1.0025."""
    batch = make_batch([[1, 1], [-1, -1]], [[-2, -3]] * 2)
    loss_BT, extras, slope_BT = evaluate(LUSPO(), [[-1.8, -2.6]] * 2, batch)
    np.testing.assert_allclose(loss_BT, [[-1.0025] * 2, [1.3498588] * 2], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[0] * 2, [1.3498588] * 2], rtol=1e-6)
    np.testing.assert_array_equal(extras["clip_high"], [[1, 1], [0, 0]])
    low_BT, _, slope_BT = evaluate(LUSPO(), [[-2.2, -3.4]] * 2, batch)
    np.testing.assert_allclose(low_BT, [[-0.7408182] * 2, [0.998] * 2], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[-0.7408182] * 2, [0] * 2], rtol=1e-6)
