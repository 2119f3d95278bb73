import dataclasses

import jax.numpy as jnp
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import TrainingBatch
from rl4p.loop.checks import (
    check_advantages,
    check_rewards,
    check_rollout,
    check_training_batch,
    check_trajectories,
)

# Row 1 of the batch has a prompt of five tokens and a response of three: its columns 0 to 2 and
# 11 to 15 are padding.


@pytest.fixture
def trajectories(make_trajectories):
    return make_trajectories()


@pytest.fixture
def rewards(make_rewards):
    return make_rewards((1, 0, 2, 0, 1, 0, 0, 3), valid=(1, 1, 1, 0, 1, 1, 1, 1))


@pytest.fixture
def advantages(trajectories, rewards):
    return jnp.where(trajectories.response_mask_BT & rewards.valid_B[:, None], 1.5, 0.0)


def test_a_good_batch_passes(trajectories, rewards, advantages):
    check_trajectories(trajectories)
    check_rewards(rewards, trajectories)
    some_B = jnp.where(rewards.valid_B & (rewards.total_B > 0), jnp.nan, 0.0)
    where = dataclasses.replace(rewards, terms={"some": some_B}, late_B=~rewards.valid_B)
    check_rewards(where, trajectories)
    check_advantages(advantages, trajectories, rewards)


@pytest.mark.parametrize(
    ("field", "broken", "message"),
    [
        ("tokens_BT", lambda x: x[:, 0], r"\[B, T\] with B > 0 and T > 1, got \(8,\)"),
        ("tokens_BT", lambda x: x[:0], r"\[B, T\] with B > 0 and T > 1, got \(0, 16\)"),
        ("tokens_BT", lambda x: x.at[2, 3].set(-1), "at least 0, got 1 entries that are not"),
        ("tokens_BT", lambda x: x.astype(jnp.float32), "a signed integer, got float32"),
        ("response_mask_BT", lambda x: x[:, :9], r"of shape \(8, 16\), got \(8, 9\)"),
        ("response_mask_BT", lambda x: x.astype(jnp.int32), "bool, got int32"),
        ("response_mask_BT", lambda x: x.at[1, 13].set(True), "false on padding, got 1 entries"),
        ("response_mask_BT", lambda x: x.at[0, 0].set(True), "false in the first column"),
        ("positions_BT", lambda x: x - 1, "at least 0"),
        ("segment_ids_BT", lambda x: x.tolist(), "an array, got list"),
        ("behaviour_logprobs_BT", lambda x: x.at[0, 9].set(jnp.nan), "finite, got 1 entries"),
        ("behaviour_logprobs_BT", lambda x: x.at[0, 9].set(0.5), "at most 0, got 1 entries"),
        ("behaviour_logprobs_BT", lambda x: x.at[1, 3].set(-1), "0 outside the response mask"),
        ("group_ids_B", lambda x: x.at[0].set(8), r"in \[0, 8\), got 1 entries"),
        ("group_ids_B", lambda x: x[:4], r"of shape \(8,\), got \(4,\)"),
        ("policy_version_BT", lambda x: x.astype(jnp.uint8), "a signed integer, got uint8"),
        ("policy_version_BT", lambda x: x.at[0, 0].set(0), "-1 outside the response mask"),
        ("finish_B", lambda x: x.at[3].set(9), "a Finish, got 1 entries"),
    ],
)
def test_broken_trajectories_are_named(trajectories, field, broken, message):
    bad = dataclasses.replace(trajectories, **{field: broken(getattr(trajectories, field))})
    with pytest.raises(RunError, match=f"Bad batch after rollout: {field} should be {message}"):
        check_trajectories(bad)


def test_the_first_token_of_a_sequence_is_no_response(trajectories):
    """In a row of several sequences the token before it belongs to another one."""
    positions_BT = trajectories.positions_BT.at[0, 9].set(0)
    bad = dataclasses.replace(trajectories, positions_BT=positions_BT)
    with pytest.raises(RunError, match="response_mask_BT should be false where a sequence begins"):
        check_trajectories(bad)


@pytest.mark.parametrize(
    ("field", "broken", "message"),
    [
        ("group_ids_B", lambda x: x.at[1].set(1), "of groups of 4 rows, got 2 entries"),
        ("tokens_BT", lambda x: x.at[6, 2].set(9), "the same in the prompts of a group, .* 1 entr"),
        ("positions_BT", lambda x: x.at[2, 7].set(0), "the same in the prompts"),
        ("segment_ids_BT", lambda x: x.at[2, 1].set(0), "the same in the prompts"),
        ("response_mask_BT", lambda x: x.at[3, 7].set(True), "false in prompts, the first 8 col"),
    ],
)
def test_prompts_that_a_group_does_not_share_are_named(make_trajectories, field, broken, message):
    """Two groups of four rows, each with one prompt."""
    made = make_trajectories(prompt_lengths=(8,) * 4 + (5,) * 4)
    tokens = made.tokens_BT.at[:, :8].set(jnp.repeat(made.tokens_BT[::4, :8], 4, axis=0))
    made = dataclasses.replace(made, tokens_BT=tokens, group_size=4, prompt_columns=8)
    check_trajectories(made)
    bad = dataclasses.replace(made, **{field: broken(getattr(made, field))})
    with pytest.raises(RunError, match=f"Bad batch after rollout: {field} should be {message}"):
        check_trajectories(bad)


@pytest.mark.parametrize(
    ("field", "broken", "message"),
    [
        ("episodes", lambda x: x[1:], "of length 8, got 7"),
        ("episodes", lambda x: (*x, x[0]), "of length 8, got 9"),
        ("tokens_BT", lambda x: x.at[1, 1].set(264), "under the vocabulary, 264, got 1 entries"),
        ("policy_version_BT", lambda x: x.at[0, 9].set(4), "at most the step, 3, got 1 entries"),
        ("tokens_BT", lambda x: x - 300, "at least 0"),
    ],
)
def test_a_broken_rollout_is_named(policy, trajectories, make_episodes, field, broken, message):
    episodes = make_episodes(("",) * 8)
    check_rollout((trajectories, episodes), policy, version=3)
    if field == "episodes":
        episodes = broken(episodes)
    else:
        bad = broken(getattr(trajectories, field))
        trajectories = dataclasses.replace(trajectories, **{field: bad})
    with pytest.raises(RunError, match=f"Bad batch after rollout: {field} should be {message}"):
        check_rollout((trajectories, episodes), policy, version=3)


@pytest.mark.parametrize(
    ("field", "broken", "message"),
    [
        ("total_B", lambda x: x[:, None], r"of shape \(8,\), got \(8, 1\)"),
        ("total_B", lambda x: x.at[0].set(jnp.inf), "finite, got 1 entries"),
        ("total_B", lambda x: x.at[3].set(1), "0 where invalid, got 1 entries"),
        ("valid_B", lambda x: x.astype(jnp.float32), "bool, got float32"),
        ("terms", lambda x: x | {"format": jnp.zeros(7)}, r"of shape \(8,\), got \(7,\)"),
        ("terms", lambda x: x | {"format": jnp.full(8, jnp.inf)}, "finite, got 8 entries"),
        ("terms", lambda x: x | {"format": jnp.ones(8)}, "0 where invalid, got 1 entries"),
        ("terms", lambda x: x | {"format": jnp.full(8, jnp.nan)}, "0 where invalid, got 1 entries"),
        ("late_B", lambda x: jnp.zeros(8), "bool, got float32"),
        ("late_B", lambda x: jnp.ones(8, bool), "false where valid, got 7 entries"),
    ],
    ids=range(10),
)
def test_broken_rewards_are_named(trajectories, rewards, field, broken, message):
    bad = dataclasses.replace(rewards, **{field: broken(getattr(rewards, field))})
    name = r"terms\['format'\]" if field == "terms" else field
    with pytest.raises(RunError, match=f"Bad batch after reward: {name} should be {message}"):
        check_rewards(bad, trajectories)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda x: x[:, 1:], r"of shape \(8, 16\), got \(8, 15\)"),
        (lambda x: x.astype(jnp.int32), "a float, got int32"),
        (lambda x: x.at[0, 9].set(jnp.nan), "finite, got 1 entries"),
        (lambda x: x.at[0, 7].set(1), "0 outside the response mask, got 1 entries"),
        (lambda x: x.at[3, 8].set(1), "0 on invalid samples, got 1 entries"),
        (lambda x: [x], "an array, got list"),
    ],
)
def test_broken_advantages_are_named(trajectories, rewards, advantages, broken, message):
    with pytest.raises(
        RunError, match=f"Bad batch after advantage: advantages_BT should be {message}"
    ):
        check_advantages(broken(advantages), trajectories, rewards)


@pytest.fixture
def training_batch(trajectories, rewards, advantages):
    mask_BT = trajectories.response_mask_BT & rewards.valid_B[:, None]
    ones_BT = jnp.where(mask_BT, 1.0, 0.0)
    scores = {"values": ones_BT, "returns": ones_BT, "greedy_rewards": rewards.total_B}
    return TrainingBatch(
        trajectories=trajectories,
        advantages_BT=advantages,
        loss_mask_BT=mask_BT,
        scores=scores | {"teacher_logprobs": jnp.where(mask_BT, -jnp.inf, jnp.nan)},
    )


@pytest.mark.parametrize(
    ("field", "broken", "message"),
    [
        ("loss_mask_BT", lambda x: x[1:], r"loss_mask_BT should be of shape \(8, 16\), got"),
        ("loss_mask_BT", lambda x: x.astype(jnp.int32), "loss_mask_BT should be bool, got int32"),
        ("loss_mask_BT", lambda x: x.at[0, 1].set(True), "be false outside the response mask"),
        ("advantages_BT", lambda x: x.at[0, 9].set(jnp.inf), "advantages_BT should be finite"),
        ("advantages_BT", lambda x: x.at[3, 8].set(1), "should be 0 outside the loss mask, got 1"),
        ("values", lambda x: x.at[0, 9].set(jnp.inf), r"\['values'\] should be finite on the"),
        ("values", lambda x: x[:, 0:9], r"of shape \(8, 16\) or \(8,\), got \(8, 9\)"),
        (
            "returns",
            lambda x: x.at[0, 0].set(1),
            r"\['returns'\] should be 0 outside the loss mask",
        ),
        ("teacher_logprobs", lambda x: x.at[0, 9].set(jnp.nan), "be a number on the loss mask"),
    ],
)
def test_a_broken_training_batch_is_named(training_batch, field, broken, message):
    check_training_batch(training_batch)
    if field in training_batch.scores:
        scores = training_batch.scores | {field: broken(training_batch.scores[field])}
        bad = dataclasses.replace(training_batch, scores=scores)
    else:
        bad = dataclasses.replace(training_batch, **{field: broken(getattr(training_batch, field))})
    with pytest.raises(RunError, match=f"Bad batch for the update: .*{message}"):
        check_training_batch(bad)
