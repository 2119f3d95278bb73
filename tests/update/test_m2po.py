import numpy as np
import pytest

from rl4p.update.m2po import M2PO


@pytest.mark.parametrize(
    ("log_ratios", "threshold", "trusted"),
    [
        # squares 0, 0.01, 0.04, 0.25; their means, from the smallest, are 0, 0.005, 0.0167, 0.075
        ((0.0, -0.1, 0.2, 0.5), 0.04, (1, 1, 1, 0)),
        ((0.5, 0.2, -0.1, 0.0), 0.04, (0, 1, 1, 1)),
        ((0.0, -0.1, 0.2, 0.5), 0.01, (1, 1, 0, 0)),
        ((0.0, -0.1, 0.2, 0.5), 0.004, (1, 0, 0, 0)),
        ((0.0, -0.1, 0.2, 0.5), 0.1, (1, 1, 1, 1)),
        ((0.0, 0.0, 0.0, 0.0), 0.04, (1, 1, 1, 1)),
        # one of both 0.2 could stay (mean 0.0133), but not both (0.02): equal values go together
        ((0.0, 0.2, 0.2, 0.0), 0.015, (1, 0, 0, 1)),
        ((0.5, 0.5, 0.6, 0.7), 0.04, (0, 0, 0, 0)),
        ((0.0, 1e4, -1e4, 0.0), 0.04, (1, 0, 0, 1)),
    ],
)
def test_the_largest_second_moments_are_left_out(
    make_batch, evaluate, log_ratios, threshold, trusted
):
    """The fifth token is outside the mask and on-policy."""
    proximal = np.asarray([[-1.0] * 5])
    behaviour = proximal - [[*log_ratios, 0.0]]
    batch = make_batch([[2.0] * 5], proximal, behaviour=behaviour, mask=[[1] * 4 + [0]])
    loss_BT, extras, slope_BT = evaluate(M2PO(threshold=threshold), proximal + 0.5, batch)
    expected = np.asarray([[*trusted, 0]]) * -3.2974425  # -2 e^0.5, without a clip
    np.testing.assert_allclose(loss_BT, expected, rtol=1e-6)
    np.testing.assert_allclose(slope_BT, expected, rtol=1e-6)
    np.testing.assert_array_equal(extras["m2_masked"][0, :4], 1 - np.asarray(trusted))


def test_rows_that_no_policy_sampled_are_trusted(make_batch):
    batch = make_batch([[2.0, 2.0]], [[-9.0, -5.0]], behaviour=[[0.0, 0.0]], version=-1)
    np.testing.assert_array_equal(M2PO().prepare(batch)["trusted"], [[1, 1]])
    assert M2PO().needs == {"proximal_logprobs"}


def test_no_tokens_at_all(make_batch):
    batch = make_batch([[2.0, 2.0]], [[-9.0, -5.0]], mask=[[0, 0]])
    np.testing.assert_array_equal(M2PO().prepare(batch)["trusted"], [[0, 0]])
