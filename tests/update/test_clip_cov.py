import numpy as np
import pytest

from rl4p.update.clip_cov import ClipCov


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        ({"share": 0.25}, [1, 0, 0, 0]),
        ({"share": 2e-4}, [1, 0, 0, 0]),  # at least one token
        ({"share": 0.5}, [1, 0, 1, 0]),
        ({"share": 1.0}, [1, 0, 1, 0]),  # the other covariances are not above 0.5
        ({"share": 0.25, "covariance_high": 3.0}, [0, 0, 1, 0]),  # the upper bound is exclusive
        ({"share": 0.25, "covariance_low": 3.0}, [0, 0, 0, 0]),
    ],
)
def test_the_tokens_of_the_largest_covariance_lose_their_gradient(
    make_batch, evaluate, options, dropped
):
    """The covariances are 3, 0, 1 and 0 (test_ratio.py), at ratio 1."""
    logprobs = [[-1, -2, -3, -2]]
    batch = make_batch([[3, -1, -1, -1]], logprobs)
    loss_BT, extras, slope_BT = evaluate(
        ClipCov(**{"covariance_low": 0.5} | options), logprobs, batch
    )
    expected = np.where(dropped, 0, [[-3, 1, 1, 1]])
    np.testing.assert_allclose(loss_BT, expected, rtol=1e-6)
    np.testing.assert_allclose(slope_BT, expected, rtol=1e-6)
    np.testing.assert_array_equal(extras["clip_cov"], [dropped])


def test_ties_go_together(make_batch):
    """Advantages minus their mean (1, -1, -1, 1), logprobs (1, -1, 1, -1): 1, 1, -1 and -1."""
    batch = make_batch([[2, 0, 0, 2]], [[-1, -3, -1, -3]])
    dropped = ClipCov(share=0.25, covariance_low=0.5).prepare(batch)["dropped"]
    np.testing.assert_array_equal(dropped, [[1, 1, 0, 0]])


def test_the_others_are_clipped_as_in_ppo(make_batch, evaluate):
    batch = make_batch([[2.0, -2.0]], [[-1, -1]])
    loss_BT, _, slope_BT = evaluate(ClipCov(), [[-1 + np.log(1.5), -1 + np.log(0.5)]], batch)
    np.testing.assert_allclose(loss_BT, [[-2.4, 1.6]], rtol=1e-6)
    np.testing.assert_array_equal(slope_BT, 0)


def test_old_logprobs_are_always_asked_for():
    assert ClipCov().needs == {"proximal_logprobs"}


def test_either_side_has_a_clip_of_its_own(make_batch, evaluate):
    batch = make_batch([[2.0, -2.0]], [[-1, -1]])
    update = ClipCov(clip_low=0.1, clip_high=0.3)
    logprobs = [[-1 + np.log(1.5), -1 + np.log(0.5)]]
    loss_BT, extras, _ = evaluate(update, logprobs, batch)
    np.testing.assert_allclose(loss_BT, [[-2.6, 1.8]], rtol=1e-6)
    np.testing.assert_array_equal(extras["clip_high"], [[1, 0]])
    np.testing.assert_array_equal(extras["clip_low"], [[0, 1]])
