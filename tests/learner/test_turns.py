"""Tests the turns of trajectories by hand."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from rl4p.learner.turns import from_starts, recurrence, turn_ends, turn_returns, turn_starts

MASK = jnp.asarray([[0, 1, 1, 0, 1, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0, 0]], bool)


def test_the_first_and_the_last_token_of_each_turn():
    assert np.argwhere(turn_starts(MASK)).tolist() == [[0, 1], [0, 4], [0, 6], [1, 0]]
    assert np.argwhere(turn_ends(MASK)).tolist() == [[0, 2], [0, 4], [0, 7], [1, 0]]


def test_the_value_at_the_start_of_a_turn_is_copied():
    values = jnp.arange(1, 17, dtype=jnp.float32).reshape(2, 8).at[0, 3].set(jnp.nan)
    expected = [[0, 2, 2, 0, 5, 0, 7, 7], [9, 0, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(from_starts(values, MASK), expected)


def test_recurrences_run_both_ways():
    factor, addend = jnp.full((1, 3), 0.5), jnp.asarray([[4.0, 2.0, 1.0]])
    np.testing.assert_array_equal(recurrence(factor, addend), [[5.25, 2.5, 1]])
    np.testing.assert_array_equal(recurrence(factor, addend, reverse=False), [[4, 4, 3]])


def test_the_returns_of_turns(make_trajectories, make_rewards):
    """Turns of 2, 1 and 2 tokens with the rewards 1 (0.5 of each token), -1 and the rest, 2."""
    trajectories = replace(make_trajectories((8, 8), limit=8, width=0), response_mask_BT=MASK)
    tokens = jnp.zeros((2, 8)).at[0, 1:3].set(0.5).at[0, 4].set(-1.0)
    rewards = replace(make_rewards((2.0, 3.0)), tokens_BT=tokens)
    returns = turn_returns(trajectories, rewards, 0.5)
    expected = [[0, 1, 1, 0, 0, 0, 2, 2], [3, 0, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(returns, expected)
