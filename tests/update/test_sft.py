import numpy as np

from rl4p.update.sft import SFT


def test_every_token_is_imitated(make_batch, evaluate):
    batch = make_batch([[5.0, -2.0, 0.0, 1.0]], [[-9.0] * 4], mask=[[1, 1, 1, 0]])
    loss_BT, _, slope_BT = evaluate(SFT(), [[-1.0, -2.0, -3.0, -4.0]], batch)
    np.testing.assert_array_equal(loss_BT, [[1, 2, 3, 0]])
    np.testing.assert_array_equal(slope_BT, [[-1, -1, -1, 0]])
