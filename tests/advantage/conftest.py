"""Fixtures for the tests of advantages."""

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
            "answer_clusters": jnp.asarray(random.integers(-2, 1, rows), jnp.int32),
        }

    return make
