import numpy as np
import pytest

from rl4p.update.vespo import VESPO


@pytest.mark.parametrize(
    ("advantage", "log_ratios", "phi"),
    [
        (1.0, (0.0, 0.0), 1.0),
        (-1.0, (0.3, -0.3), 1.0),
        (1.0, (np.log(2), 0.0), 0.19914827),  # 2^2 e^-3
        (1.0, (np.log(4), -np.log(2)), 0.19914827),  # the sum counts, not the mean
        (-1.0, (np.log(2), 0.0), 1.0826823),  # 2^3 e^-2
        (1.0, (-np.log(2), 0.0), 1.1204223),  # 1/4 e^1.5
        (-1.0, (-np.log(2), 0.0), 0.33978523),  # 1/8 e
        (0.0, (np.log(2), 0.0), 0.19914827),
    ],
)
def test_the_kernel_weighs_every_token_of_the_sequence(
    make_batch, evaluate, advantage, log_ratios, phi
):
    batch = make_batch([[advantage] * 3], [[-2, -3, -4]], mask=[[1, 1, 0]])
    logprobs = np.asarray([[-2 + log_ratios[0], -3 + log_ratios[1], 7.0]])
    loss_BT, extras, slope_BT = evaluate(VESPO(), logprobs, batch)
    inside = np.asarray([[1, 1, 0]])
    np.testing.assert_allclose(extras["vespo_weight"], phi * inside, rtol=1e-5)
    np.testing.assert_allclose(loss_BT, -phi * advantage * logprobs * inside, rtol=1e-5)
    np.testing.assert_allclose(slope_BT, -phi * advantage * inside, rtol=1e-5)


@pytest.mark.parametrize(
    ("log_ratios", "log_w"),
    [
        ((-30.0, 15.0), -5.0),  # a token counts at most 20
        ((-15.0, -15.0), -20.0),  # the sum counts at most 20 too
    ],
)
def test_log_ratios_and_their_sum_are_clamped(make_batch, evaluate, log_ratios, log_w):
    batch = make_batch([[1.0, 1.0]], [[-40.0, -40.0]])
    _, extras, _ = evaluate(VESPO(), [np.add(-40.0, log_ratios)], batch)
    phi = np.exp(2 * log_w + 3 * (1 - np.exp(log_w)))
    np.testing.assert_allclose(extras["vespo_weight"], [[phi, phi]], rtol=1e-4)
