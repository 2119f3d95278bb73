import jax
import numpy as np
import pytest

from rl4p.advantage.grpo import GRPO


@pytest.mark.parametrize(
    ("ddof", "deviations"),
    [
        (0, [np.sqrt(2 / 3)] * 3 + [np.sqrt(3 / 16)] * 4),
        (1, [1.0] * 3 + [0.5] * 4),
    ],
)
def test_by_hand(make_trajectories, make_rewards, ddof, deviations):
    """(0, 1, 2) has mean 1 and squared deviations 2 in all; (0, 0, 0, 1) has 1/4 and 3/4."""
    trajectories = make_trajectories((1, 8, 2, 3, 0, 5, 4), group_ids=(3, 3, 3, 0, 0, 0, 0))
    rewards = make_rewards((0, 1, 2, 0, 0, 0, 1))
    advantages = jax.jit(GRPO(ddof=ddof))(trajectories, rewards)
    difference = np.asarray([-1, 0, 1, -0.25, -0.25, -0.25, 0.75])
    expected_B = difference / (np.asarray(deviations) + 1e-4)
    expected = np.where(trajectories.response_mask_BT, expected_B[:, None], 0)
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)


@pytest.mark.slow
def test_epsilon_is_added_to_the_deviation(make_trajectories, make_rewards):
    trajectories, rewards = make_trajectories((1, 1), group_ids=(0, 0)), make_rewards((0, 2))
    advantages = GRPO(ddof=0, epsilon=1.0)(trajectories, rewards)
    np.testing.assert_allclose(advantages[:, 8], [-0.5, 0.5])
