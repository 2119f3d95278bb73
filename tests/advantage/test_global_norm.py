import jax
import numpy as np

from rl4p.advantage.global_norm import GlobalNorm


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """The mean is 4 and the variance (16 + 4 + 4 + 16) / 3, for any groups and lengths."""
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(4, 4, 0, 1, 0))
    rewards = make_rewards((0, 2, 6, 8, 0), valid=(1, 1, 1, 1, 0))
    advantages = jax.jit(GlobalNorm(epsilon=0.1))(trajectories, rewards)
    expected = np.asarray([-4, -2, 2, 4, 0]) / (np.sqrt(40 / 3) + 0.1)
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)
