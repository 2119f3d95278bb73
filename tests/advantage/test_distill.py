from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.advantage.distill import Distill


def test_by_hand(make_trajectories, make_rewards):
    """The advantage is teacher minus student; it is clamped if the teacher's probability is 0."""
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


def test_a_token_that_the_student_hardly_believed_in_is_clamped_too(
    make_trajectories, make_rewards
):
    """The teacher's probability is e^25 times the student's; outside the response all is nan."""
    trajectories = make_trajectories((1,))
    student = jnp.full((1, 16), np.nan).at[0, 8].set(-26.0)
    trajectories = replace(trajectories, behaviour_logprobs_BT=student)
    scores = {"teacher_logprobs": jnp.full((1, 16), -1.0)}
    advantages = Distill()(trajectories, make_rewards((0,)), scores=scores)
    np.testing.assert_array_equal(advantages, [[0] * 8 + [20] + [0] * 7])
    assert Distill.needs == {"teacher_logprobs"}
