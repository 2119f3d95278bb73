import numpy as np
import pytest

from rl4p.update.dro import DRO


@pytest.mark.parametrize(
    ("level", "penalties", "slopes"),
    [
        ("sequence", (0.16, 0.16), (0.8, 0.8)),  # log-ratios 0.3 and 0.5, sum 0.8: 1/2 x 0.64
        ("token", (0.045, 0.125), (0.3, 0.5)),
    ],
)
@pytest.mark.parametrize("anchor", ["reference", "behaviour"])
def test_the_square_and_its_slope(make_batch, evaluate, level, penalties, slopes, anchor):
    anchors = {"reference": [[-9, -9, -9]], "behaviour": [[-8, -8, -8]]} | {
        anchor: [[-2, -3, np.nan]]
    }
    batch = make_batch(
        [[2, 2, 2]],
        [[-5, -5, -5]],
        mask=[[1, 1, 0]],
        behaviour=anchors["behaviour"],
        reference_logprobs=anchors["reference"],
    )
    update = DRO(level=level, anchor=anchor, tau=1.0)
    loss_BT, extras, slope_BT = evaluate(update, [[-1.7, -2.5, 0.0]], batch)
    np.testing.assert_allclose(extras["dro_penalty"], [[*penalties, 0]], rtol=1e-5)
    np.testing.assert_allclose(loss_BT, [[3.4 + penalties[0], 5 + penalties[1], 0]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[slopes[0] - 2, slopes[1] - 2, 0]], rtol=1e-6)


def test_a_reference_is_asked_for_only_where_it_is_the_anchor():
    assert DRO().needs == {"reference_logprobs"}
    assert DRO(anchor="behaviour").needs == set()
    assert DRO(epochs=2).needs == {"proximal_logprobs", "reference_logprobs"}


def test_rows_that_no_policy_sampled_are_held_to_the_proximal_one(make_batch, evaluate):
    """The log-ratio to it is 2: the loss is 1/2 x 4 and the slope 2."""
    batch = make_batch([[0.0]], [[-3.0]], behaviour=[[0.0]], version=-1)
    loss_BT, _, slope_BT = evaluate(DRO(anchor="behaviour", tau=1.0), [[-1.0]], batch)
    np.testing.assert_allclose(loss_BT, [[2.0]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[2.0]], rtol=1e-6)


def test_the_default_aggregation_is_the_mean_over_sequences(make_batch, evaluate):
    """Half of the squares of 0.8 and 0.5, over two sequences of two tokens and of one."""
    batch = make_batch(
        [[0, 0], [0, 0]], [[0, 0]] * 2, mask=[[1, 1], [1, 0]], reference_logprobs=[[-2, -3]] * 2
    )
    loss_BT, _, _ = evaluate(DRO(tau=1.0), [[-1.7, -2.5], [-1.5, 9.0]], batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), (0.64 + 0.25) / 4, rtol=1e-5)
