import jax
import numpy as np

from rl4p.advantage.constant import Constant


def test_one_value_on_every_response_token_of_every_valid_sample(make_trajectories, make_rewards):
    trajectories = make_trajectories((1, 8, 0))
    rewards = make_rewards((5, 7, 9), valid=(1, 0, 1))
    advantages = jax.jit(Constant(value=-2.5))(trajectories, rewards)
    expected = np.zeros((3, 16))
    expected[0, 8] = -2.5
    np.testing.assert_array_equal(advantages, expected)
