import jax
import numpy as np
import pytest

from rl4p.advantage.dapo_mix import DAPOMix


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Groups (0, 2) and (6, 8) have the deviation sqrt 2; the batch has mean 4, variance 40 / 3."""
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(4, 4, 0, 0, 0))
    rewards = make_rewards((0, 2, 6, 8, 0), valid=(1, 1, 1, 1, 0))
    advantages = jax.jit(DAPOMix(alpha=0.5, epsilon=0.1))(trajectories, rewards)
    group = np.asarray([-1, 1, -1, 1, 0]) / (np.sqrt(2) + 0.1)
    batch = np.asarray([-4, -2, 2, 4, 0]) / (np.sqrt(40 / 3) + 0.1)
    expected = group + 0.5 * batch
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)


@pytest.mark.slow
def test_an_equal_group_gets_no_global_part_either(make_trajectories, make_rewards, per_sample):
    trajectories = make_trajectories((1, 8, 2, 3), group_ids=(1, 1, 0, 0))
    advantages = per_sample(trajectories, DAPOMix()(trajectories, make_rewards((5, 5, 0, 1))))
    np.testing.assert_array_equal(advantages != 0, [False, False, True, True])
