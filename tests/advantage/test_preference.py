import jax
import numpy as np
import pytest

from rl4p.advantage.preference import Preference


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Takes the best and the worst of (0, 1, 5) and of (3, -1); one sample is invalid."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5), group_ids=(1, 1, 1, 0, 0, 0))
    rewards = make_rewards((0, 1, 5, 3, 0, -1), valid=(1, 1, 1, 1, 0, 1))
    advantages = jax.jit(Preference())(trajectories, rewards)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-1, 0, 1, 1, 0, -1])


@pytest.mark.slow
def test_the_first_of_equally_good_rows_is_taken(make_trajectories, make_rewards, per_sample):
    """The first row has the reward 0, like the worst, but is invalid."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5), group_ids=(5,) * 6)
    rewards = make_rewards((0, 0, 1, 0, 1, 1), valid=(0, 1, 1, 1, 1, 1))
    advantages = Preference()(trajectories, rewards)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [0, -1, 1, 0, 0, 0])
