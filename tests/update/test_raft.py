import numpy as np

from rl4p.update.raft import RAFT


def test_good_samples_are_imitated_whatever_their_advantage(make_batch, evaluate):
    batch = make_batch([[5.0, 0.1, -2.0, 0.0]], [[-9.0] * 4])
    loss_BT, extras, slope_BT = evaluate(RAFT(), [[-1.0, -2.0, -3.0, -4.0]], batch)
    np.testing.assert_array_equal(loss_BT, [[1, 2, 0, 0]])
    np.testing.assert_array_equal(slope_BT, [[-1, -1, 0, 0]])
    np.testing.assert_array_equal(extras["kept"], [[1, 1, 0, 0]])
