from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.advantage.running_baseline import RunningBaseline

COMPILED = jax.jit(RunningBaseline(decay=0.75, max_tasks=4))


def call(trajectories, rewards, tasks, memory):
    scores = {"task_ids": jnp.asarray(tasks, jnp.int32)}
    return COMPILED(trajectories, rewards, scores=scores, memory=memory)


def test_by_hand_over_two_steps(make_trajectories, make_rewards, per_sample):
    """A new task starts at its mean, (1 + 5) / 2 = 3; then it is 3/4 x 3 + 1/4 x 11 = 5."""
    trajectories = make_trajectories((1, 8, 2, 3))
    memory = RunningBaseline(max_tasks=4).initial_state()

    first = make_rewards((1, 7, 5, 0), valid=(1, 1, 1, 0))
    advantages, memory = call(trajectories, first, (2, 0, 2, 1), memory)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-2, 0, 2, 0])
    np.testing.assert_array_equal(memory["baseline"], [7, 0, 3, 0])
    np.testing.assert_array_equal(memory["seen"], [True, False, True, False])

    second = make_rewards((10, 12, 0, 6), valid=(1, 1, 0, 1))
    advantages, memory = call(trajectories, second, (2, 2, 2, 1), memory)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [7, 9, 0, 0])
    np.testing.assert_array_equal(memory["baseline"], [7, 6, 5, 0])
    np.testing.assert_array_equal(memory["seen"], [True, True, True, False])


def test_each_role_of_a_task_has_its_own_baseline(make_trajectories, make_rewards):
    """Roles of the tokens: 0 0 1, 1 0, and 0 alone; the third sample is invalid.

    The rewards of tokens are 2, -1 and, in the second sample, 4 for role 0; totals are 2 and 4, so
    that 1 of the first one belongs to both roles. Role 0 has 3 and 4, role 1 has 0 and 0.
    """
    trajectories = make_trajectories((3, 2, 1))
    roles, tokens = np.zeros((2, *trajectories.tokens_BT.shape), np.float32)
    roles[0, 10], roles[1, 8] = 1, 1
    tokens[0, 8], tokens[0, 10], tokens[1, 9], tokens[2, 8] = 2, -1, 4, 7
    rewards = make_rewards((2, 4, 0), valid=(1, 1, 0))
    rewards = replace(rewards, tokens_BT=jnp.asarray(tokens))
    phase = RunningBaseline(decay=0.75, max_tasks=2, max_roles=2)
    assert phase.needs == {"task_ids", "turn_roles"}
    scores = {
        "task_ids": jnp.ones(3, jnp.int32),
        "turn_roles": jnp.asarray(roles, jnp.int32),
    }
    memory = phase.initial_state()
    for known in (False, True):
        advantages, memory = jax.jit(phase)(trajectories, rewards, scores=scores, memory=memory)
        role_0 = (-0.5, 0.5) if not known else (3 - 2, 4 - 2)
        role_1 = (0, 0) if not known else (0 - 8, 0 - 8)
        np.testing.assert_array_equal(advantages[0, 8:11], [role_0[0]] * 2 + [role_1[0]])
        np.testing.assert_array_equal(advantages[1, 8:10], [role_1[1], role_0[1]])
        np.testing.assert_array_equal(advantages[2], 0)
        np.testing.assert_array_equal(np.asarray(advantages)[:, 11:], 0)
        if not known:
            np.testing.assert_array_equal(memory["baseline"], [0, 0, 3.5, 0])
            np.testing.assert_array_equal(memory["seen"], [False, False, True, True])
            memory |= {"baseline": jnp.asarray([0.0, 0.0, 2.0, 8.0])}
    np.testing.assert_array_equal(memory["baseline"], [0, 0, 2.375, 6])


def test_a_role_that_has_said_nothing_changes_no_baseline(make_trajectories, make_rewards):
    phase = RunningBaseline(max_tasks=1, max_roles=3)
    trajectories = make_trajectories((2, 3))
    scores = {
        "task_ids": jnp.zeros(2, jnp.int32),
        "turn_roles": jnp.full(trajectories.tokens_BT.shape, 5, jnp.int32),  # beyond the last
    }
    _, memory = phase(
        trajectories, make_rewards((1, 3)), scores=scores, memory=phase.initial_state()
    )
    np.testing.assert_array_equal(memory["baseline"], [0, 0, 2])
    np.testing.assert_array_equal(memory["seen"], [False, False, True])


def test_there_may_be_more_tasks_than_samples_and_more_than_places(
    make_trajectories, make_rewards, per_sample
):
    trajectories = make_trajectories((1, 8))
    memory = RunningBaseline(max_tasks=4).initial_state()
    advantages, memory = call(trajectories, make_rewards((1, 3)), (3, 9), memory)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [-1, 1])
    np.testing.assert_array_equal(memory["baseline"], [0, 0, 0, 2])


def test_a_new_task_of_equal_rewards_is_exactly_zero(make_trajectories, make_rewards):
    memory = RunningBaseline(max_tasks=4).initial_state()
    advantages, _ = call(make_trajectories(), make_rewards([0.9] * 8), [1] * 8, memory)
    np.testing.assert_array_equal(advantages, 0)


def test_the_memory_begins_unseen_and_as_long_as_there_are_tasks():
    phase = RunningBaseline(max_tasks=3)
    memory = phase.initial_state()
    np.testing.assert_array_equal(memory["baseline"], np.zeros(3, np.float32))
    np.testing.assert_array_equal(memory["seen"], [False] * 3)
    assert phase.needs == {"task_ids"}


def test_a_single_sample_of_a_known_task_has_an_advantage(
    make_trajectories, make_rewards, per_sample
):
    """The baseline is 5, then 0.75 x 5 + 0.25 x 9 = 6. An invalid sample changes no baseline."""
    trajectories = make_trajectories((1, 8))
    memory = {
        "baseline": jnp.asarray([5.0, 7.0, 0.0, 0.0]),
        "seen": jnp.asarray([True, True, False, False]),
    }
    rewards = make_rewards((9, 0), valid=(1, 0))
    advantages, memory = call(trajectories, rewards, (0, 1), memory)
    np.testing.assert_array_equal(per_sample(trajectories, advantages), [4, 0])
    np.testing.assert_array_equal(memory["baseline"], [6, 7, 0, 0])
