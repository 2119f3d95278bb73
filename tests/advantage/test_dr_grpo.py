import jax
import numpy as np

from rl4p.advantage.dr_grpo import DrGRPO


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """The group means are (0 + 1 + 5) / 3 = 2 and, without the invalid sample, (3 - 1) / 2 = 1."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5), group_ids=(1, 1, 1, 0, 0, 0))
    rewards = make_rewards((0, 1, 5, 3, 0, -1), valid=(1, 1, 1, 1, 0, 1))
    advantages = jax.jit(DrGRPO())(trajectories, rewards)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-2, -1, 3, 2, 0, -2])
