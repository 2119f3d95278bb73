"""Tests the turns of trajectories by hand."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.advantage.dr_grpo import DrGRPO
from rl4p.base.types import Finish
from rl4p.learner.advantage_options import (
    AdvantageOptions,
    clipped,
    drop_truncated,
    from_starts,
    recurrence,
    turn_ends,
    turn_returns,
    turn_starts,
)


def test_the_limit_is_off_at_zero():
    advantages = jnp.asarray([[-3.0, -1.0, 0.0, 0.5, 2.0]])
    np.testing.assert_array_equal(clipped(AdvantageOptions(), advantages), advantages)
    np.testing.assert_array_equal(
        clipped(AdvantageOptions(clip=1.0), advantages), [[-1, -1, 0, 0.5, 1]]
    )


def test_truncated_samples_are_invalid_and_leave_the_baseline(
    make_trajectories, make_rewards, per_sample
):
    """The first sample is truncated and the last invalid: (1, 3) are left, with mean 2."""
    finish = jnp.asarray([Finish.LENGTH, Finish.STOP, Finish.ABORT, Finish.STOP], jnp.int8)
    trajectories = replace(make_trajectories((8, 2, 3, 4)), finish_B=finish)
    tokens = jnp.where(trajectories.response_mask_BT, 0.5, 0.0)
    rewards = replace(make_rewards((4, 1, 3, 0), valid=(1, 1, 1, 0)), tokens_BT=tokens)
    options = DrGRPO(mask_truncated=True)

    kept = jax.jit(lambda *batch: drop_truncated(options, *batch))(trajectories, rewards)
    np.testing.assert_array_equal(kept.valid_B, [False, True, True, False])
    np.testing.assert_array_equal(kept.total_B, [0, 1, 3, 0])
    np.testing.assert_array_equal(kept.terms["correct"], [0, 1, 3, 0])
    np.testing.assert_array_equal(kept.tokens_BT[:, 8], [0, 0.5, 0.5, 0])
    advantages = options(trajectories, kept)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [0, -1, 1, 0])

    plain = replace(rewards, tokens_BT=None)
    assert drop_truncated(options, trajectories, plain).tokens_BT is None
    assert drop_truncated(DrGRPO(), trajectories, rewards) is rewards


def test_the_yaml_of_every_advantage_has_the_defaults_of_its_class():
    paths = sorted((Path(__file__).resolve().parents[2] / "conf" / "advantage").glob("*.yaml"))
    assert len(paths) > 20
    for path in paths:
        phase = instantiate(OmegaConf.load(path))
        assert phase == type(phase)(), path.stem


def test_a_phase_without_these_options_is_left_alone(make_trajectories, make_rewards):
    trajectories, rewards = make_trajectories((1,)), make_rewards((1,))
    cut = replace(trajectories, finish_B=jnp.asarray([Finish.LENGTH], jnp.int8))
    assert drop_truncated(object(), cut, rewards) is rewards
    advantages = jnp.asarray([[1e9]])
    assert clipped(object(), advantages) is advantages


MASK = jnp.asarray([[0, 1, 1, 0, 1, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0, 0]], bool)


def test_the_first_and_the_last_token_of_each_turn():
    assert np.argwhere(turn_starts(MASK)).tolist() == [[0, 1], [0, 4], [0, 6], [1, 0]]
    assert np.argwhere(turn_ends(MASK)).tolist() == [[0, 2], [0, 4], [0, 7], [1, 0]]


@pytest.mark.slow
def test_the_value_at_the_start_of_a_turn_is_copied():
    values = jnp.arange(1, 17, dtype=jnp.float32).reshape(2, 8).at[0, 3].set(jnp.nan)
    expected = [[0, 2, 2, 0, 5, 0, 7, 7], [9, 0, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(from_starts(values, MASK), expected)


def test_recurrences_run_both_ways():
    factor, addend = jnp.full((1, 3), 0.5), jnp.asarray([[4.0, 2.0, 1.0]])
    np.testing.assert_array_equal(recurrence(factor, addend), [[5.25, 2.5, 1]])
    np.testing.assert_array_equal(recurrence(factor, addend, reverse=False), [[4, 4, 3]])


@pytest.mark.slow
def test_the_returns_of_turns(make_trajectories, make_rewards):
    """Turns of 2, 1 and 2 tokens with the rewards 1 (0.5 of each token), -1 and the rest, 2."""
    trajectories = replace(make_trajectories((8, 8), limit=8, width=0), response_mask_BT=MASK)
    tokens = jnp.zeros((2, 8)).at[0, 1:3].set(0.5).at[0, 4].set(-1.0)
    rewards = replace(make_rewards((2.0, 3.0)), tokens_BT=tokens)
    returns = turn_returns(trajectories, rewards, 0.5)
    expected = [[0, 1, 1, 0, 0, 0, 2, 2], [3, 0, 0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(returns, expected)
