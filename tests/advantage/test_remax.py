import jax
import jax.numpy as jnp
import numpy as np

from rl4p.advantage.remax import ReMax


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Two prompts have the baselines 0.5 and 2; the third's greedy response has no grade."""
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(1, 1, 0, 0, 3))
    rewards = make_rewards((0, 1, 2, 0, 7), valid=(1, 1, 1, 0, 1))
    scores = {"greedy_rewards": jnp.asarray([0.5, 0.5, 2, 2, np.nan], jnp.float32)}
    advantages = jax.jit(ReMax())(trajectories, rewards, scores=scores)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-0.5, 0.5, 0, 0, 0])


def test_a_single_sample_has_an_advantage_and_equal_rewards_are_nothing_special(
    make_trajectories, make_rewards, per_sample
):
    trajectories = make_trajectories((1, 8, 2), group_ids=(1, 1, 0))
    scores = {"greedy_rewards": jnp.asarray([0.25, 0.25, 3.0])}
    advantages = ReMax()(trajectories, make_rewards((1, 1, 1)), scores=scores)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [0.75, 0.75, -2])
    assert ReMax.needs == {"greedy_rewards"}
