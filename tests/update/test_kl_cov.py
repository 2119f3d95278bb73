import numpy as np

from rl4p.update.kl_cov import KLCov


def test_the_tokens_of_the_largest_covariance_get_the_penalty(make_batch, evaluate):
    """Covariances are 3, 0, 1, 0 and log-ratios -0.5: e^-0.5 = 0.6065307, penalty 2 x 0.5."""
    proximal = np.asarray([[-1.0, -2.0, -3.0, -2.0]])
    batch = make_batch([[3, -1, -1, -1]], proximal)
    update = KLCov(share=0.25, coefficient=2.0)
    loss_BT, extras, slope_BT = evaluate(update, proximal - 0.5, batch)
    plain = np.asarray([[-1.8195920, 0.6065307, 0.6065307, 0.6065307]])
    np.testing.assert_allclose(loss_BT, np.add(plain, [[1, 0, 0, 0]]), rtol=1e-6)
    np.testing.assert_allclose(slope_BT, np.add(plain, [[-2, 0, 0, 0]]), rtol=1e-6)
    np.testing.assert_array_equal(extras["kl_cov"], [[1, 0, 0, 0]])
    two = update.prepare(batch) | KLCov(share=0.5).prepare(batch)
    np.testing.assert_array_equal(two["penalised"], [[1, 0, 1, 0]])


def test_nothing_is_clipped_and_at_ratio_one_the_penalty_has_no_slope(make_batch, evaluate):
    batch = make_batch([[3.0, -1.0]], [[-1.0, -2.0]])
    slope_BT = evaluate(KLCov(), [[-1.0, -2.0]], batch)[2]
    np.testing.assert_allclose(slope_BT, [[-3, 1]])
    slope_BT = evaluate(KLCov(coefficient=0.0), [[0.0, -2.0]], batch)[2]
    np.testing.assert_allclose(slope_BT, [[-3 * np.e, 1]], rtol=1e-6)


def test_equal_advantages_choose_nothing(make_batch):
    batch = make_batch([[0.7, 0.7, 0.7]], [[-1.0, -2.0, -4.0]])
    assert not KLCov(share=1.0).prepare(batch)["penalised"].any()
    assert KLCov().needs == {"proximal_logprobs"}


def test_only_covariances_above_zero_are_chosen_however_large_the_share(make_batch):
    """The covariances are 3, 0, 1 and 0. A share of less than a token chooses one."""
    batch = make_batch([[3, -1, -1, -1]], [[-1, -2, -3, -2]])
    for share, chosen in ((1.0, [1, 0, 1, 0]), (1e-6, [1, 0, 0, 0])):
        np.testing.assert_array_equal(KLCov(share=share).prepare(batch)["penalised"], [chosen])
