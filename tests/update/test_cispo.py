import numpy as np
import pytest

from rl4p.update.cispo import CISPO


@pytest.mark.parametrize(
    ("options", "ratio", "weight", "clipped"),
    [
        ({}, 1.0, 1.0, set()),
        ({}, 0.1, 0.1, set()),
        ({}, 7.0, 5.0, {"clip_high"}),
        ({"low": 0.5}, 0.1, 0.5, {"clip_low"}),
        ({"bound": "relative", "low": 1.0, "high": 0.5}, 7.0, 1.5, {"clip_high"}),
        ({"bound": "relative", "low": 1.0, "high": 0.5}, 0.1, 0.1, set()),
        ({"bound": "relative", "low": 0.2, "high": 0.5}, 0.1, 0.8, {"clip_low"}),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -3.0])
def test_the_weight_is_clipped_and_the_gradient_stays(
    make_batch, evaluate, options, ratio, weight, clipped, advantage
):
    logprob = -1.5
    batch = make_batch([[advantage]], [[logprob - np.log(ratio)]])
    loss_BT, extras, slope_BT = evaluate(CISPO(**options), [[logprob]], batch)
    np.testing.assert_allclose(loss_BT, [[1.5 * weight * advantage]], rtol=1e-5)
    np.testing.assert_allclose(slope_BT, [[-weight * advantage]], rtol=1e-5)
    assert {name for name, x in extras.items() if x.all()} == clipped
