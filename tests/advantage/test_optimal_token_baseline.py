from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.optimal_token_baseline import OptimalTokenBaseline

COMPILED = jax.jit(OptimalTokenBaseline())


@pytest.fixture
def batch(make_trajectories, make_rewards):
    """Returns samples with token weights (0.5, 1.5) and (1.5, 0.5, 0.5), the second with a gap.

    The weights are 1 - 2 x 0.5 + 0.5 = 0.5 and 1 - 2 x 0.25 + 1 = 1.5. Of two more samples one is
    alone in its group and one is invalid.
    """
    trajectories = make_trajectories((2, 5, 1, 4), group_ids=(2, 2, 0, 2))
    mask = np.asarray(trajectories.response_mask_BT).copy()
    mask[1, 9:11] = False
    probability, collision = np.full((2, 4, 16), 0.5, np.float32)
    for row, column in ((0, 9), (1, 8)):
        probability[row, column], collision[row, column] = 0.25, 1
    nowhere = np.float32(np.nan)
    scores = {
        "proximal_logprobs": jnp.asarray(np.where(mask, np.log(probability), nowhere)),
        "collision": jnp.asarray(np.where(mask, collision, nowhere)),
    }
    trajectories = replace(trajectories, response_mask_BT=jnp.asarray(mask))
    return trajectories, make_rewards((4, 0, 3, 0), valid=(1, 1, 1, 0)), scores


def test_by_hand(batch):
    """The baseline is 4 x 0.5 / (0.5 + 1.5) = 1 at the first token and 4 x 2 / (2 + 2) = 2 next.

    At the third token the second sample has no sibling.
    """
    trajectories, rewards, scores = batch
    advantages = COMPILED(trajectories, rewards, scores=scores)
    expected = np.zeros((4, 16))
    expected[0, 8:10], expected[1, [8, 11]] = (3, 2), (-1, -2)
    np.testing.assert_allclose(advantages, expected, rtol=1e-6)


def test_rewards_of_tokens_count_from_their_token_on(batch):
    """The first token gets 2 of the reward 4: from the second on the return is 2, B = 2 x 2 / 4."""
    trajectories, rewards, scores = batch
    tokens = np.zeros((4, 16), np.float32)
    tokens[0, 8] = 2
    rewards = replace(rewards, tokens_BT=jnp.asarray(tokens))
    advantages = COMPILED(trajectories, rewards, scores=scores)
    np.testing.assert_allclose(advantages[0, 8:10], [3, 1], rtol=1e-6)
    np.testing.assert_allclose(advantages[1, [8, 11, 12]], [-1, -1, 0], rtol=1e-6)


def test_no_choice_made_is_nothing_to_learn_from(batch):
    """Tokens of probability 1 have the weight 0."""
    trajectories, rewards, scores = batch
    certain = {name: jnp.full((4, 16), float(name == "collision")) for name in scores}
    np.testing.assert_array_equal(COMPILED(trajectories, rewards, scores=certain), 0)


def test_a_weight_that_rounds_below_zero_is_none(batch):
    """Probability 1 with a collision of 1/2 gives 1 - 2 + 0.5 < 0, which counts as weight 0.

    The first sample, of reward 4, then has no weight: the baseline is the second's reward 0.
    """
    trajectories, rewards, scores = batch
    scores = {
        "proximal_logprobs": scores["proximal_logprobs"].at[0, 8:10].set(0.0),
        "collision": scores["collision"].at[0, 8:10].set(0.5),
    }
    advantages = COMPILED(trajectories, rewards, scores=scores)
    np.testing.assert_allclose(advantages[0, 8:10], [4, 4], rtol=1e-6)
    np.testing.assert_array_equal(advantages[1], 0)
