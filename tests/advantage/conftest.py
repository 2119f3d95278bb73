"""Fixtures for the tests of advantages."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(scope="session")
def make_scores():
    """Returns a function that makes every score; values that may not matter are nan."""

    def make(trajectories, seed=0):
        mask = np.asarray(trajectories.response_mask_BT)
        random = np.random.default_rng(seed)

        def tokens(low, high):
            drawn = random.uniform(low, high, mask.shape).astype(np.float32)
            return jnp.asarray(np.where(mask, drawn, np.float32(np.nan)))

        rows = len(mask)
        return {
            "proximal_logprobs": tokens(-4, 0),
            "reference_logprobs": tokens(-8, -4),
            "teacher_logprobs": tokens(-8, -4),
            "entropy": tokens(0, 2),
            "collision": tokens(0.1, 1),
            "values": tokens(-1, 1),
            "greedy_rewards": jnp.asarray(random.uniform(-1, 1, rows), jnp.float32),
            "task_ids": jnp.asarray(random.integers(0, 3, rows), jnp.int32),
            "turn_states": jnp.zeros(mask.shape, jnp.int32),
            "turn_roles": jnp.asarray(np.where(mask, random.integers(0, 2, mask.shape), 0)),
            "answer_clusters": jnp.asarray(random.integers(-2, 1, rows), jnp.int32),
        }

    return make


@pytest.fixture(scope="session")
def make_turns(make_trajectories, make_rewards):
    """Returns a function that makes a random batch of two groups of three rows of turns.

    The result is the trajectories, the rewards with rewards of tokens, and the turns of each row as
    lists of columns.
    """

    def make(seed, *, most=4, tokens=True):
        random = np.random.default_rng(seed)
        trajectories = make_trajectories(
            (0,) * 6, width=4, limit=24, group_ids=(1, 0, 0, 1, 1, 0), seed=seed
        )
        mask, turns = np.zeros((6, 28), bool), []
        for row in range(6):
            end, own = 4, []
            for _ in range(random.integers(1, most + 1)):
                start = end + int(random.integers(0 if not own else 1, 3))
                end = start + int(random.integers(1, 4))
                own.append(list(range(start, end)))
                mask[row, start:end] = True
            turns.append(own)
        valid = np.arange(6) != 4
        total = np.where(valid, random.integers(-2, 3, 6) / 2, 0).astype(np.float32)
        rewards = make_rewards(total, valid)
        trajectories = replace(
            trajectories,
            response_mask_BT=jnp.asarray(mask),
            segment_ids_BT=jnp.ones_like(trajectories.segment_ids_BT),
        )
        if tokens:
            drawn = random.integers(-2, 3, mask.shape).astype(np.float32) / 4
            drawn = jnp.asarray(np.where(mask & valid[:, None], drawn, 0))
            rewards = replace(rewards, tokens_BT=drawn, total_B=total + np.sum(drawn, axis=1))
        return trajectories, rewards, turns

    return make
