import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.gigpo import GiGPO
from rl4p.advantage.grpo import GRPO
from tests.support.turns import returns_of_turns


def states_of(trajectories, turns, seed):
    """Returns a number of each turn's state; the first turns of a group share theirs."""
    random = np.random.default_rng(seed)
    states = np.zeros(trajectories.tokens_BT.shape, np.int32)
    for row, group in enumerate(np.asarray(trajectories.group_ids_B)):
        for number, columns in enumerate(turns[row]):
            states[row, columns] = 4 * group + (random.integers(1, 4) if number else 0)
    return states


def compared(values, epsilon):
    """Returns (x - mean) / (std + epsilon) in float64; 0 if all are equal."""
    values = np.asarray(values, np.float64)
    if len(values) < 2 or np.ptp(values) == 0:
        return np.zeros(len(values))
    return (values - values.mean()) / (values.std(ddof=1) + epsilon)


@pytest.mark.parametrize("seed", range(5))
def test_turns_of_a_state_are_compared_as_in_float64(make_turns, seed):
    trajectories, rewards, turns = make_turns(seed)
    states, phase = states_of(trajectories, turns, seed), GiGPO(weight=0.5, gamma=0.9, epsilon=0.1)
    groups, valid = np.asarray(trajectories.group_ids_B), np.asarray(rewards.valid_B)
    returns, expected = returns_of_turns(rewards, turns, 0.9), np.zeros(states.shape)
    for group in set(groups):
        rows = np.flatnonzero((groups == group) & valid)
        of_rows = compared(np.asarray(rewards.total_B)[rows], 0.1)
        for row, value in zip(rows, of_rows, strict=True):
            expected[row, [column for turn in turns[row] for column in turn]] += value
    places = {}
    for row in np.flatnonzero(valid):
        for columns, value in zip(turns[row], returns[row], strict=True):
            places.setdefault(states[row, columns[0]], []).append((row, columns, value))
    for same in places.values():
        of_turns = compared([value for *_, value in same], 0.1)
        for (row, columns, _), value in zip(same, of_turns, strict=True):
            expected[row, columns] += 0.5 * value
    assert max(map(len, places.values())) >= 3
    advantages = jax.jit(phase)(trajectories, rewards, scores={"turn_states": jnp.asarray(states)})
    np.testing.assert_allclose(advantages, expected, rtol=2e-5, atol=2e-5)


def test_groups_of_one_turn_get_what_grpo_gives(make_turns):
    trajectories, rewards, turns = make_turns(3, most=1, tokens=False)
    scores = {"turn_states": jnp.asarray(states_of(trajectories, turns, 0))}
    ours = jax.jit(GiGPO())(trajectories, rewards, scores=scores)
    theirs = jax.jit(GRPO())(trajectories, rewards)
    assert np.any(theirs)
    np.testing.assert_array_equal(ours, theirs)
