import numpy as np

from rl4p.update.kimi import Kimi


def test_the_square_is_that_of_the_sequence(make_batch, evaluate):
    """The log-ratios 0.3 + 0.5 = 0.8 give the penalty 0.1 / 2 x 0.64 = 0.032, slope 0.1 x 0.8."""
    batch = make_batch([[2] * 3, [0] * 3], [[-2, -3, -4]] * 2, mask=[[1, 1, 0]] * 2)
    logprobs = np.asarray([[-1.7, -2.5, 9.0]] * 2)
    loss_BT, extras, slope_BT = evaluate(Kimi(tau=0.1), logprobs, batch)
    np.testing.assert_allclose(loss_BT, [[3.416, 5.016, 0], [0.016, 0.016, 0]], rtol=1e-5)
    np.testing.assert_allclose(slope_BT, [[-1.92, -1.92, 0], [0.08, 0.08, 0]], rtol=1e-5)
    np.testing.assert_allclose(extras["mirror_penalty"].sum(), 0.064, rtol=1e-5)


def test_the_default_aggregation_is_the_mean_over_sequences(make_batch, evaluate):
    """The sum -A log pi + 0.05 x square is 2 x 4.2 + 0.032 and -1 x 2 + 0.05 x 1, over two."""
    batch = make_batch([[2, 2], [-1, -1]], [[-2, -3], [-3, 0]], mask=[[1, 1], [1, 0]])
    loss_BT, _, _ = evaluate(Kimi(), [[-1.7, -2.5], [-2.0, 0.0]], batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), (8.432 - 1.95) / 2, rtol=1e-6)
