import jax
import numpy as np

from rl4p.advantage.pass_k import PassK


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """(0, 1, 5) has mean 2 and variance (4 + 1 + 9) / 2; (3, -1), without the invalid, 8."""
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5), group_ids=(1, 1, 1, 0, 0, 0))
    rewards = make_rewards((0, 1, 5, 3, 0, -1), valid=(1, 1, 1, 1, 0, 1))
    advantages = jax.jit(PassK(epsilon=0.5))(trajectories, rewards)
    expected = [0, 0, 4 / (np.sqrt(7) + 0.5), 4 / (np.sqrt(8) + 0.5), 0, 0]
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)


def test_two_best_learn_nothing_and_an_invalid_one_is_no_best(
    make_trajectories, make_rewards, per_sample
):
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5), group_ids=(1, 1, 1, 0, 0, 0))
    rewards = make_rewards((1, 1, 0, -3, 0, -1), valid=(1, 1, 1, 1, 0, 1))
    advantages = per_sample(trajectories, PassK()(trajectories, rewards))
    np.testing.assert_allclose(advantages, [0, 0, 0, 0, 0, 2 / (np.sqrt(2) + 1e-4)], rtol=1e-6)


def test_an_invalid_sample_is_not_beside_the_best(make_trajectories, make_rewards, per_sample):
    """The invalid sample has the reward 0, like the best: the best sample is still unique."""
    trajectories = make_trajectories((1, 8, 2), group_ids=(0, 0, 0))
    rewards = make_rewards((0, 0, -2), valid=(1, 0, 1))
    advantages = per_sample(trajectories, PassK()(trajectories, rewards))
    np.testing.assert_allclose(advantages, [2 / (np.sqrt(2) + 1e-4), 0, 0], rtol=1e-6)


def test_the_second_is_the_next_lower_reward_and_not_the_lowest(
    make_trajectories, make_rewards, per_sample
):
    """With rewards -3, -2, -1 the best gets 1, divided by the deviation 1."""
    trajectories = make_trajectories((1, 8, 2), group_ids=(0, 0, 0))
    advantages = per_sample(trajectories, PassK()(trajectories, make_rewards((-3, -1, -2))))
    np.testing.assert_allclose(advantages, [0, 1 / (1 + 1e-4), 0], rtol=1e-6)
