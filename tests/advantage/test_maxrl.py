import jax
import numpy as np

from rl4p.advantage.maxrl import MaxRL


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """One of four samples succeeds: 1 / 0.25 - 1 = 3. The mean of the second group is below 0."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5, 6), group_ids=(1, 1, 1, 1, 0, 0, 0))
    rewards = make_rewards((0, 1, 0, 0, -3, 1, 0), valid=(1, 1, 1, 1, 1, 1, 0))
    advantages = jax.jit(MaxRL())(trajectories, rewards)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-1, 3, -1, -1, 0, 0, 0])


def test_a_mean_of_zero_is_not_divided_by(make_trajectories, make_rewards):
    trajectories = make_trajectories((1, 8), group_ids=(0, 0))
    np.testing.assert_array_equal(MaxRL()(trajectories, make_rewards((-1, 1))), 0)
