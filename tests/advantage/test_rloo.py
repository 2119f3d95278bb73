import jax
import numpy as np

from rl4p.advantage.rloo import RLOO


def test_by_hand(make_trajectories, make_rewards):
    """Each baseline is the mean of the others: (0, 1, 5), then (3, -1) and an invalid sample."""
    trajectories = make_trajectories((1, 8, 2, 3, 0, 5), group_ids=(1, 1, 1, 0, 0, 0))
    rewards = make_rewards((0, 1, 5, 3, 0, -1), valid=(1, 1, 1, 1, 0, 1))
    advantages = jax.jit(RLOO())(trajectories, rewards)
    expected_B = np.asarray([0 - 3, 1 - 2.5, 5 - 0.5, 3 - -1, 0, -1 - 3])
    expected = np.where(trajectories.response_mask_BT, expected_B[:, None], 0)
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)
