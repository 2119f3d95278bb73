import jax
import numpy as np

from rl4p.advantage.reinforce_pp_baseline import ReinforcePPBaseline


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Differences are -1 (one token), 1 (three tokens), and 0 (two tokens of an equal group).

    Mean 2 / 6, mean square 4 / 6, variance 4/6 - 4/36 = 5/9. The equal group stays 0.
    """
    trajectories = make_trajectories((1, 3, 1, 1, 5), group_ids=(2, 2, 0, 0, 0))
    rewards = make_rewards((1, 3, 7, 7, 0), valid=(1, 1, 1, 1, 0))
    advantages = jax.jit(ReinforcePPBaseline())(trajectories, rewards)
    expected = np.asarray([-1 - 1 / 3, 1 - 1 / 3, 0, 0, 0]) / (np.sqrt(5) / 3 + 1e-4)
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-5)
