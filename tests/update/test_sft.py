import numpy as np

from rl4p.update.sft import SFT


def test_every_token_is_imitated(make_batch, evaluate):
    batch = make_batch([[5.0, -2.0, 0.0, 1.0]], [[-9.0] * 4], mask=[[1, 1, 1, 0]])
    loss_BT, _, slope_BT = evaluate(SFT(), [[-1.0, -2.0, -3.0, -4.0]], batch)
    np.testing.assert_array_equal(loss_BT, [[1, 2, 3, 0]])
    np.testing.assert_array_equal(slope_BT, [[-1, -1, -1, 0]])


def test_dynamic_fine_tuning_weighs_a_token_by_its_probability(make_batch, evaluate):
    """The weight is a constant: the slope of -p log p would be -p (1 + log p)."""
    p = np.array([[0.5, 0.25, 0.01, 0.9]])
    batch = make_batch([[1.0] * 4], [[-9.0] * 4], mask=[[1, 1, 1, 0]])
    loss_BT, _, slope_BT = evaluate(SFT(dft=True), np.log(p), batch)
    np.testing.assert_allclose(loss_BT, [[*(-p * np.log(p))[0, :3], 0]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[-0.5, -0.25, -0.01, 0]], rtol=1e-6)
