import jax
import numpy as np

from rl4p.advantage.gpg import GPG


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Three of six valid samples, those of the first group, have an advantage: 6/3 x (-1, 0, 1)."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5, 6, 7), group_ids=(1, 1, 1, 0, 0, 0, 5, 1))
    rewards = make_rewards((0, 1, 2, 7, 0, 7, 3, 0), valid=(1, 1, 1, 1, 0, 1, 1, 0))
    advantages = jax.jit(GPG())(trajectories, rewards)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-2, 0, 2, 0, 0, 0, 0, 0])


def test_invalid_samples_are_not_counted(make_trajectories, make_rewards, per_sample):
    """Two of five valid samples have an advantage: 5/2 x (-1, 1). Three more are invalid."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5, 6, 7), group_ids=(1, 1, 0, 0, 0, 1, 1, 1))
    rewards = make_rewards((0, 2, 7, 7, 7, 0, 0, 0), valid=(1, 1, 1, 1, 1, 0, 0, 0))
    advantages = GPG()(trajectories, rewards)
    np.testing.assert_array_equal(
        per_sample(trajectories, advantages), [-2.5, 2.5, 0, 0, 0, 0, 0, 0]
    )
