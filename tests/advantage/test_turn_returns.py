import jax
import numpy as np
import pytest

from rl4p.advantage.reinforce import Reinforce
from rl4p.advantage.turn_returns import TurnReturns
from tests.support.turns import returns_of_turns


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
def test_the_return_of_each_turn_as_in_float64(make_turns, seed, gamma):
    trajectories, rewards, turns = make_turns(seed)
    expected = np.zeros(trajectories.tokens_BT.shape)
    for row, own in enumerate(returns_of_turns(rewards, turns, gamma)):
        for columns, value in zip(turns[row], own, strict=True):
            expected[row, columns] = value - 0.25 if rewards.valid_B[row] else 0.0
    advantages = jax.jit(TurnReturns(gamma=gamma, baseline=0.25))(trajectories, rewards)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6)
    assert len({len(own) for own in turns}) > 1


def test_one_turn_gets_what_reinforce_gives(make_turns):
    trajectories, rewards, _ = make_turns(3, most=1, tokens=False)
    ours = jax.jit(TurnReturns(gamma=0.5, baseline=0.3))(trajectories, rewards)
    theirs = jax.jit(Reinforce(baseline=0.3))(trajectories, rewards)
    assert np.any(theirs)
    np.testing.assert_array_equal(ours, theirs)
