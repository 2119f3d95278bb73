import numpy as np
import pytest

from rl4p.update.dppo import DPPO


@pytest.mark.parametrize(
    ("advantage", "probability", "anchor", "weight", "clipped"),
    [
        (1.0, 0.4, 0.3, 4 / 3, None),
        (1.0, 0.5, 0.3, 0.0, "clip_high"),
        (1.0, 0.1, 0.3, 1 / 3, None),  # a good token may regain lost probability
        (-1.0, 0.5, 0.3, 5 / 3, None),
        (-1.0, 0.2, 0.3, 2 / 3, None),
        (-1.0, 0.1, 0.3, 0.0, "clip_low"),
        (1.0, 0.1, 0.001, 20.0, None),  # a rare token keeps its gradient, with a capped weight
        (0.0, 0.9, 0.1, 9.0, None),
    ],
)
def test_tokens_are_dropped_by_the_change_of_their_probability(
    make_batch, evaluate, advantage, probability, anchor, weight, clipped
):
    """The proximal policy is far from both and does not matter."""
    batch = make_batch([[advantage]], [[-9.0]], behaviour=[[np.log(anchor)]])
    loss_BT, extras, slope_BT = evaluate(DPPO(), [[np.log(probability)]], batch)
    expected = -weight * advantage * np.log(probability)
    np.testing.assert_allclose(loss_BT, [[expected]], rtol=1e-5)
    np.testing.assert_allclose(slope_BT, [[-weight * advantage]], rtol=1e-5)
    assert {name for name, x in extras.items() if x.all()} == ({clipped} - {None})


@pytest.mark.parametrize(
    ("options", "version"), [({"old_policy": "proximal"}, 0), ({"old_policy": "behaviour"}, -1)]
)
def test_the_old_policy_may_be_the_proximal_one_and_is_where_none_sampled(
    make_batch, evaluate, options, version
):
    batch = make_batch([[1.0]], [[np.log(0.45)]], behaviour=[[0.0]], version=version)
    np.testing.assert_allclose(
        evaluate(DPPO(**options), [[np.log(0.5)]], batch)[2], [[-10 / 9]], rtol=1e-5
    )
