import jax
import numpy as np
import pytest

from rl4p.advantage.opo import OPO


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Baselines: (1 x 0 + 8 x 1 + 3 x 4) / 12 = 5/3; (2 x 3 + 6 x -1) / 8 = 0, one is invalid."""
    trajectories = make_trajectories((1, 8, 3, 2, 7, 6), group_ids=(1, 1, 1, 0, 0, 0))
    rewards = make_rewards((0, 1, 4, 3, 0, -1), valid=(1, 1, 1, 1, 0, 1))
    advantages = jax.jit(OPO())(trajectories, rewards)
    expected = [-5 / 3, -2 / 3, 7 / 3, 3, 0, -1]
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)


@pytest.mark.parametrize("lengths", [(0, 3, 0), (0, 0, 0)])
def test_siblings_without_tokens_have_no_weight(make_trajectories, make_rewards, lengths):
    trajectories = make_trajectories(lengths, group_ids=(0, 0, 0))
    np.testing.assert_array_equal(OPO()(trajectories, make_rewards((0.3, 0.1, 0.2))), 0)


def test_a_sample_without_tokens_is_no_sibling(make_trajectories, make_rewards, per_sample):
    """The baseline of the others is (2 x 1 + 6 x 5) / 8 = 4; equal rewards give exactly 0."""
    trajectories = make_trajectories((2, 6, 0), group_ids=(0, 0, 0))
    advantages = OPO()(trajectories, make_rewards((1, 5, 100)))
    np.testing.assert_allclose(per_sample(trajectories, advantages), [-3, 1, 0], rtol=1e-6)
    trajectories = make_trajectories((3, 7, 0), group_ids=(0, 0, 0))
    np.testing.assert_array_equal(OPO()(trajectories, make_rewards((0.3, 0.3, 100.1))), 0)
