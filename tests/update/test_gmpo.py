import numpy as np

from rl4p.update.gmpo import GMPO


def test_each_token_is_clipped_where_its_advantage_pushes(make_batch, evaluate):
    """Log-ratios (0.6, -0.8) clip to (0.4, -0.8), mean -0.2, if A > 0; else (0.6, -0.4), 0.1."""
    batch = make_batch([[2, 2], [-2, -2], [0, 0]], [[-2, -2]] * 3)
    loss_BT, extras, slope_BT = evaluate(GMPO(), [[-1.4, -2.8]] * 3, batch)
    np.testing.assert_allclose(loss_BT, [[-1.6374615] * 2, [2.2103418] * 2, [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[0, -1.6374615], [2.2103418, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(extras["clip_high"], [[1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(extras["clip_low"], [[0, 0], [0, 1], [0, 0]])


def test_only_the_rows_own_tokens_count(make_batch, evaluate):
    """At ratio 1 the loss is -A for each row, with the weight 1 / (2 sequences x length)."""
    batch = make_batch([[1] * 3, [-2] * 3], [[-1] * 3] * 2, mask=[[1, 1, 1], [1, 0, 0]])
    loss_BT, _, slope_BT = evaluate(GMPO(), [[-1, -1, -1], [-1, 9, 9]], batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), 0.5, rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[-1 / 6] * 3, [1, 0, 0]], rtol=1e-6)


def test_either_side_has_a_clip_of_its_own(make_batch, evaluate):
    """Log-ratios (0.6, -0.8) clip to (0.5, -0.8), mean -0.15, if A > 0; else (0.6, -0.1), 0.25."""
    batch = make_batch([[2, 2], [-2, -2]], [[-2, -2]] * 2)
    loss_BT, _, _ = evaluate(GMPO(clip_low=0.1, clip_high=0.5), [[-1.4, -2.8]] * 2, batch)
    expected = [[-2 * np.exp(-0.15)] * 2, [2 * np.exp(0.25)] * 2]
    np.testing.assert_allclose(loss_BT, expected, rtol=1e-6)
