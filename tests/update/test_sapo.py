import numpy as np
import pytest

from rl4p.update.sapo import SAPO


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "slope"),
    [
        (2.0, 1.0, -4.0, -2.0),  # sigmoid 1/2, times 4
        (-2.0, 1.0, 3.8095238, 2.0),  # the gate is 2 / 1.05
        (2.0, 2.0, -5.8484686, -3.1457873),  # sigmoid(1) = 0.7310586, p (1 - p) = 0.1966119
        (-2.0, 2.0, 5.6439992, 3.0724392),  # sigmoid(1.05) = 0.7407749, 0.1920274
        (2.0, 0.5, -3.0203255, -0.9400149),  # sigmoid(-0.5) = 0.3775407, 0.2350037
        (0.0, 2.0, 0.0, 0.0),
    ],
)
def test_the_gate_and_its_slope(make_batch, evaluate, advantage, ratio, loss, slope):
    batch = make_batch([[advantage]], [[-2.0]])
    loss_BT, _, slope_BT = evaluate(SAPO(), [[-2.0 + np.log(ratio)]], batch)
    np.testing.assert_allclose(loss_BT, [[loss]], rtol=2e-6)
    np.testing.assert_allclose(slope_BT, [[slope]], rtol=2e-6)
