import jax
import jax.numpy as jnp
import numpy as np

from rl4p.advantage.seed_grpo import SEEDGRPO


def test_by_hand(make_trajectories, make_rewards, per_sample):
    """Four samples give three answers (2 + 1 + 1): H / log 4 = 1.5 log 2 / log 4 = 3/4.

    In the second group two valid samples give two answers: H / log 2 = 1. Its invalid sample has
    the same answer as one of them. Both groups contain the same cluster id.
    """
    trajectories = make_trajectories((1, 8, 2, 3, 4, 5, 6), group_ids=(3, 3, 0, 3, 0, 3, 0))
    rewards = make_rewards((1, 0, 1, 0, 0, 0, 0), valid=(1, 1, 1, 1, 0, 1, 1))
    scores = {"answer_clusters": jnp.asarray([5, -7, 5, 5, 5, 90, -7], jnp.int32)}
    advantages = jax.jit(SEEDGRPO(alpha=2.0))(trajectories, rewards, scores=scores)
    expected = np.asarray([0.75, -0.25, 0, -0.25, 0, -0.25, 0]) / 2.5
    expected[[2, 6]] = 0.5 / 3, -0.5 / 3
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-6)


def test_agreement_damps_nothing(make_trajectories, make_rewards, per_sample):
    trajectories = make_trajectories((1, 8, 2), group_ids=(0, 0, 0))
    scores = {"answer_clusters": jnp.full(3, 4, jnp.int32)}
    advantages = SEEDGRPO(alpha=9.0)(trajectories, make_rewards((0, 0, 3)), scores=scores)
    np.testing.assert_allclose(per_sample(trajectories, advantages), [-1, -1, 2], rtol=1e-6)


def test_without_damping_it_is_the_advantage_of_dr_grpo(
    make_trajectories, make_rewards, per_sample
):
    trajectories = make_trajectories((1, 8, 2), group_ids=(0, 0, 0))
    scores = {"answer_clusters": jnp.asarray([1, 2, 3], jnp.int32)}
    advantages = SEEDGRPO(alpha=0.0)(trajectories, make_rewards((0, 0, 3)), scores=scores)
    np.testing.assert_allclose(per_sample(trajectories, advantages), [-1, -1, 2], rtol=1e-6)
    assert SEEDGRPO.needs == {"answer_clusters"}


def test_the_same_answer_of_another_group_does_not_agree(
    make_trajectories, make_rewards, per_sample
):
    """The first group has one answer (H = 0), the second that answer and another (H = log 2)."""
    trajectories = make_trajectories((1, 8, 2, 3), group_ids=(0, 0, 1, 1))
    scores = {"answer_clusters": jnp.asarray([4, 4, 4, 9], jnp.int32)}
    advantages = SEEDGRPO(alpha=1.0)(trajectories, make_rewards((0, 2, 0, 2)), scores=scores)
    np.testing.assert_allclose(per_sample(trajectories, advantages), [-1, 1, -0.5, 0.5], rtol=1e-6)
