from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.gae import GAE


@pytest.fixture
def batch(make_trajectories, make_rewards):
    """Returns three rows: 3 tokens with a gap of 2 columns, no token, and an invalid sample."""
    trajectories = make_trajectories((5, 0, 4))
    mask = np.asarray(trajectories.response_mask_BT).copy()
    mask[0, 9:11] = False
    values = np.full((3, 16), np.nan, np.float32)
    values[0, [8, 11, 12]] = 0.5, 1.0, -1.0
    return (
        replace(trajectories, response_mask_BT=jnp.asarray(mask)),
        make_rewards((2, 9, 0), valid=(1, 1, 0)),
        {"values": jnp.asarray(values)},
    )


def on_tokens(*values):
    expected = np.zeros((3, 16))
    expected[0, [8, 11, 12]] = values
    return expected


# With gamma 0.5 the deltas are 0.5 x 1 - 0.5 = 0, 0.5 x -1 - 1 = -1.5 and 2 - -1 = 3.
def test_by_hand_over_two_turns(batch):
    """Gamma x lambda is 0.25: from the last token on, 3, then -1.5 + 0.75, then 0 - 0.75 / 4."""
    trajectories, rewards, scores = batch
    phase = GAE(gamma=0.5, lambda_policy=0.5, whiten=False)
    advantages = jax.jit(phase)(trajectories, rewards, scores=scores)
    np.testing.assert_allclose(advantages, on_tokens(-0.1875, -0.75, 3), rtol=1e-6)


@pytest.mark.slow
def test_the_critics_targets_have_a_lambda_of_their_own(batch):
    """Targets are discounted returns (0.5, 1, 2) at lambda 1, and r + gamma V at lambda 0."""
    sums = GAE(gamma=0.5, lambda_policy=0.3).returns(*batch)
    np.testing.assert_allclose(sums, on_tokens(0.5, 1, 2), rtol=1e-6)
    steps = jax.jit(GAE(gamma=0.5, lambda_value=0.0).returns)(*batch)
    np.testing.assert_allclose(steps, on_tokens(0.5, -0.5, 2), rtol=1e-6)


@pytest.mark.parametrize(("alpha", "decay"), [(1.0, 2 / 3), (0.5, 1 / 3), (0.1, 0.0)])
def test_lambda_grows_with_the_length(batch, alpha, decay):
    """With three tokens lambda is 1 - 1 / (3 alpha), but at least 0."""
    trajectories, rewards, scores = batch
    advantages = GAE(alpha=alpha, whiten=False)(trajectories, rewards, scores=scores)
    second = -2 + decay * 3
    expected = on_tokens(0.5 + decay * second, second, 3)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-6)


def test_a_reward_comes_at_its_token_and_the_rest_at_the_last(batch):
    """The total is 2 and the first token has -1, so the last gets 3. Lambda 0 leaves the deltas."""
    trajectories, rewards, scores = batch
    tokens = np.zeros((3, 16), np.float32)
    tokens[0, 8], tokens[2] = -1, np.nan
    rewards = replace(rewards, tokens_BT=jnp.asarray(tokens))
    phase = GAE(lambda_policy=0.0, whiten=False)
    advantages = phase(trajectories, rewards, scores=scores)
    np.testing.assert_allclose(advantages, on_tokens(-0.5, -2, 4), rtol=1e-6)


def test_whitened_over_the_tokens(batch):
    trajectories, rewards, scores = batch
    plain = np.asarray([0.5 - 2 + 3, -2 + 3, 3])
    phase = GAE(lambda_policy=1.0, epsilon=0.1)
    advantages = phase(trajectories, rewards, scores=scores)
    expected = on_tokens(*(plain - plain.mean()) / (plain.std() + 0.1))
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)


def test_a_decay_that_alpha_replaces_is_refused():
    with pytest.raises(ValueError, match=r"lambda_policy=0\.5 conflicts with alpha=0\.05"):
        GAE(alpha=0.05, lambda_policy=0.5)


def test_the_length_changes_the_advantages_and_not_the_critics_targets(batch):
    """At lambda_value 1 the targets are the returns, here without a discount."""
    targets = GAE(alpha=0.1).returns(*batch)
    np.testing.assert_allclose(targets, on_tokens(2, 2, 2), rtol=1e-6)
    assert GAE.needs == {"values"}


@pytest.mark.slow
def test_nothing_comes_after_a_response_that_fills_its_row(make_trajectories, make_rewards):
    """Two tokens fill the last two columns: values 1 and 3, reward 2, deltas 3 - 1 and 2 - 3."""
    trajectories = make_trajectories((2,), width=2, limit=2)
    scores = {"values": jnp.asarray([[9.0, 9.0, 1.0, 3.0]])}
    phase = GAE(lambda_policy=0.0, whiten=False)
    advantages = phase(trajectories, make_rewards((2,)), scores=scores)
    np.testing.assert_allclose(advantages, [[0, 0, 2, -1]], rtol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("turn_gamma", "turn_lambda"), [(0.5, 0.25), (None, 0.25), (0.5, None)])
def test_turns_have_a_discount_and_a_decay_of_their_own(make_turns, seed, turn_gamma, turn_lambda):
    """The recursion from the last token back, in float64."""
    trajectories, rewards, turns = make_turns(seed)
    values = np.random.default_rng(seed).normal(size=trajectories.tokens_BT.shape)
    values = values.astype(np.float32)
    own = np.asarray(rewards.tokens_BT, np.float64)
    expected, targets = np.zeros((2, *values.shape))
    for row in np.flatnonzero(rewards.valid_B):
        later, later_target, following = 0.0, 0.0, 0.0
        tokens = [(column, column == turn[-1]) for turn in turns[row] for column in turn]
        own[row, tokens[-1][0]] += float(rewards.total_B[row]) - own[row].sum()
        for column, last in tokens[::-1]:
            gamma = 0.9 if turn_gamma is None or not last else turn_gamma
            decay = 0.8 if turn_lambda is None or not last else turn_lambda
            target_decay = 0.7 if turn_lambda is None or not last else turn_lambda
            delta = own[row, column] + gamma * following - values[row, column]
            later = expected[row, column] = delta + gamma * decay * later
            later_target = delta + gamma * target_decay * later_target
            following = values[row, column]
            targets[row, column] = later_target + following
    phase = GAE(
        gamma=0.9,
        lambda_policy=0.8,
        lambda_value=0.7,
        turn_gamma=turn_gamma,
        turn_lambda=turn_lambda,
        whiten=False,
    )
    batch = trajectories, rewards
    scores = {"values": jnp.asarray(values)}
    advantages = jax.jit(phase)(*batch, scores=scores)
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        jax.jit(phase.returns)(*batch, scores), targets, rtol=1e-4, atol=1e-5
    )
    plain = GAE(gamma=0.9, lambda_policy=0.8, whiten=False)(*batch, scores=scores)
    assert np.abs(plain - expected).max() > 0.01


def test_discounts_of_turns_change_nothing_in_one_turn(make_turns):
    trajectories, rewards, _ = make_turns(3, most=1)
    values = np.random.default_rng(0).normal(size=trajectories.tokens_BT.shape).astype(np.float32)
    batch = trajectories, rewards
    scores = {"values": jnp.asarray(values)}
    ours = jax.jit(GAE(turn_gamma=0.5, turn_lambda=0.25))(*batch, scores=scores)
    theirs = jax.jit(GAE())(*batch, scores=scores)
    assert np.any(theirs)
    np.testing.assert_array_equal(ours, theirs)
