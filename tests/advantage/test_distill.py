from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.advantage.distill import Distill


def test_by_hand(make_trajectories, make_rewards):
    """Teacher less student; a token that the teacher rules out is clamped."""
    trajectories = make_trajectories((3, 2))
    student, teacher = np.zeros((2, 16), np.float32), np.full((2, 16), np.nan, np.float32)
    student[0, 8:11], teacher[0, 8:11] = (-1, -2, -3), (-0.5, -2, -np.inf)
    trajectories = replace(trajectories, behaviour_logprobs_BT=jnp.asarray(student))
    rewards = make_rewards((7, 0), valid=(1, 0))
    scores = {"teacher_logprobs": jnp.asarray(teacher)}
    advantages = jax.jit(Distill())(trajectories, rewards, scores=scores)
    expected = np.zeros((2, 16))
    expected[0, 8:11] = 0.5, 0, -20
    np.testing.assert_array_equal(advantages, expected)
