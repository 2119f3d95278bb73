import jax
import numpy as np

from rl4p.advantage.reinforce import Reinforce


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Other samples do not matter: a sample alone in its group has its reward minus 0.5."""
    trajectories = make_trajectories((1, 8, 2, 3), group_ids=(1, 1, 1, 0))
    rewards = make_rewards((0, 1, 0, 3), valid=(1, 1, 0, 1))
    advantages = jax.jit(Reinforce(baseline=0.5))(trajectories, rewards)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-0.5, 0.5, 0, 2.5])
    plain = per_sample(trajectories, Reinforce()(trajectories, rewards))
    np.testing.assert_array_equal(plain, [0, 1, 0, 3])
