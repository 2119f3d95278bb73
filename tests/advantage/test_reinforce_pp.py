from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.advantage.reinforce_pp import ReinforcePP


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Tokens have returns 1, 1, 1, 5: mean 2, variance (3 x 1 + 9) / 4 = 3."""
    trajectories = make_trajectories((3, 1, 0, 4))
    rewards = make_rewards((1, 5, 100, 0), valid=(1, 1, 1, 0))
    advantages = jax.jit(ReinforcePP())(trajectories, rewards)
    expected = np.asarray([-1, 3, 0, 0]) / (np.sqrt(3) + 1e-4)
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)


def test_rewards_of_tokens_count_from_their_token_on(make_trajectories, make_rewards):
    """Rewards -1, 0, -2 and a final 4 give returns 1, 2, 2; the next are 5, 5, 5: mean 20 / 6."""
    trajectories = make_trajectories((3, 3, 8))
    tokens = np.zeros((3, 16), np.float32)
    tokens[0, 8:11], tokens[2] = (-1, 0, -2), np.nan
    rewards = make_rewards((1, 5, 0), valid=(1, 1, 0))
    rewards = replace(rewards, tokens_BT=jnp.asarray(tokens))
    advantages = jax.jit(ReinforcePP())(trajectories, rewards)
    returns = np.asarray([[1, 2, 2], [5, 5, 5]])
    expected = np.zeros((3, 16))
    expected[:2, 8:11] = (returns - 20 / 6) / (returns.std() + 1e-4)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)
