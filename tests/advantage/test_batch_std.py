import jax
import numpy as np

from rl4p.advantage.batch_std import BatchStd


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Rewards 0, 2, 6, 8 have the mean 4 and the variance (16 + 4 + 4 + 16) / 3."""
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(4, 4, 0, 0, 0))
    rewards = make_rewards((0, 2, 6, 8, 0), valid=(1, 1, 1, 1, 0))
    advantages = jax.jit(BatchStd(epsilon=0.5))(trajectories, rewards)
    expected = np.asarray([-1, 1, -1, 1, 0]) / (np.sqrt(40 / 3) + 0.5)
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)


def test_an_equal_group_is_zero_and_still_counts_in_the_deviation(
    make_trajectories, make_rewards, per_sample
):
    """The deviation is that of all five rewards, not of (1, 0) alone, which is 0.7071."""
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(1, 1, 1, 0, 0))
    total = np.asarray([0.1, 0.1, 0.1, 1, 0])
    advantages = per_sample(trajectories, BatchStd()(trajectories, make_rewards(total)))
    np.testing.assert_array_equal(advantages[:3], 0)
    np.testing.assert_allclose(advantages[3:], np.asarray([0.5, -0.5]) / (total.std(ddof=1) + 1e-4))
