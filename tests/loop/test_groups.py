"""Tests batches that are divided into groups and joined again."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Prompt, Rewards
from rl4p.loop.checks import check_trajectories
from rl4p.loop.filter import AnySuccess, Deviation
from rl4p.loop.groups import check_filters, divided, joined, newest_only
from rl4p.protocols.engine import Completion
from rl4p.rollout.sampler import answers_on_host


@pytest.fixture(scope="module")
def batch(policy, prompts):
    """Three groups of two samples; the longest prompt makes all rows wider."""
    long = Prompt(**vars(prompts[0]) | {"id": "long", "tokens": tuple(range(65, 65 + 20))})
    asked = [prompts[0], long, prompts[1]]
    completions = [
        Completion(
            tokens=np.arange(length, dtype=np.int32) + 70,
            logprobs=-np.ones(length, np.float32),
            versions=np.full(length, 2, np.int32),
            finish=Finish.STOP,
        )
        for length in (3, 8, 1, 2, 5, 4)
    ]
    trajectories, episodes = answers_on_host(policy, asked, completions, 8)
    numbers = np.arange(6, dtype=np.float32)
    rewards = Rewards(
        total_B=numbers, terms={"a": numbers * 2}, valid_B=numbers != 3, late_B=numbers == 3
    )
    return asked, completions, (trajectories, tuple(episodes), rewards)


def test_the_groups_of_a_batch_join_to_the_same_batch(policy, batch, equal):
    *_, (trajectories, episodes, rewards) = batch
    found = joined(divided(trajectories, episodes, rewards), policy.pad_id)
    equal(found[0], trajectories)
    assert found[1] == episodes
    equal(found[2], rewards)


def test_groups_of_several_widths_join_to_the_batch_that_was_sampled_at_once(policy, batch, equal):
    asked, completions, (trajectories, _, rewards) = batch
    groups = []
    for g, prompt in enumerate(asked):
        parts, episodes = answers_on_host(policy, [prompt], completions[2 * g : 2 * g + 2], 8)
        graded = Rewards(
            total_B=rewards.total_B[2 * g : 2 * g + 2],
            terms={"a": rewards.terms["a"][2 * g : 2 * g + 2]},
            valid_B=rewards.valid_B[2 * g : 2 * g + 2],
            late_B=rewards.late_B[2 * g : 2 * g + 2],
        )
        groups += divided(parts, tuple(episodes), graded)
    assert {group.trajectories.tokens_BT.shape[1] for group in groups} == {24, 40}
    found, _, grades = joined(groups, policy.pad_id)
    equal(found, trajectories)
    equal(grades, rewards)
    check_trajectories(found)


def test_groups_come_in_the_order_of_their_first_rows_and_keep_their_own(batch):
    *_, (trajectories, episodes, rewards) = batch
    mixed = replace(trajectories, group_ids_B=np.int32([4, 1, 4, 0, 1, 0]), group_size=1)
    groups = divided(mixed, episodes, rewards)
    assert [group.rewards.total_B.tolist() for group in groups] == [[0, 2], [1, 4], [3, 5]]
    for group, rows in zip(groups, ([0, 2], [1, 4], [3, 5]), strict=True):
        np.testing.assert_array_equal(group.trajectories.tokens_BT, trajectories.tokens_BT[rows])
        assert group.episodes == tuple(episodes[row] for row in rows)
        assert group.trajectories.group_ids_B.tolist() == [0, 0]


def test_rows_without_prompt_columns_are_padded_on_the_right(policy, make_group):
    short, long = make_group([0, 1]), make_group([1, 0])
    wide = replace(
        long.trajectories,
        **{
            name: np.pad(
                getattr(long.trajectories, name),
                ((0, 0), (0, 3)),
                constant_values=-1 if name == "policy_version_BT" else 0,
            )
            for name in vars(long.trajectories)
            if name.endswith("_BT")
        },
        prompt_columns=0,
    )
    found, *_ = joined([short, replace(long, trajectories=wide)], policy.pad_id)
    T = short.trajectories.tokens_BT.shape[1]
    assert found.prompt_columns == 0
    np.testing.assert_array_equal(found.tokens_BT[:2, :T], short.trajectories.tokens_BT)
    assert (found.tokens_BT[:2, T:] == policy.pad_id).all()
    check_trajectories(replace(found, group_size=1))


def test_groups_of_several_sizes_have_no_common_size(policy, make_group):
    found, *_ = joined([make_group([0, 1, 1]), make_group([0, 1])], policy.pad_id)
    assert found.group_size == 1
    assert found.group_ids_B.tolist() == [0, 0, 0, 1, 1]


def test_grades_that_only_some_groups_have(policy, make_group):
    first, second = make_group([0, 1]), make_group([1, 0], valid=[True, False])
    tokens_BT = np.float32(np.arange(2 * first.trajectories.tokens_BT.shape[1])).reshape(2, -1)
    first = replace(
        first,
        rewards=replace(
            first.rewards,
            terms=first.rewards.terms | {"own": np.float32([5, 6])},
            tokens_BT=tokens_BT,
            late_B=np.array([False, True]),
        ),
    )
    *_, rewards = joined([first, second], policy.pad_id)
    np.testing.assert_array_equal(rewards.terms["own"], np.float32([5, 6, np.nan, 0]))
    assert rewards.late_B.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(rewards.tokens_BT, np.concatenate([tokens_BT, 0 * tokens_BT]))
    *_, without = joined([second, second], policy.pad_id)
    assert without.late_B is None
    assert without.tokens_BT is None


def test_right_samples_are_valid_and_have_at_least_1(make_group):
    group = make_group([1.0, 0.99, 2.0, 1.0], valid=[True, True, True, False])
    assert group.right("correct").tolist() == [True, False, True, False]
    assert group.right(None).tolist() == [True, False, True, False]
    other = np.float32([0.0, 1.0, np.nan, 1.0])
    group = replace(group, rewards=replace(group.rewards, terms={"other": other}))
    assert group.right("other").tolist() == [False, True, False, False]


def test_only_the_newest_tokens_may_be_trained(make_trajectories):
    trajectories = jax.device_get(make_trajectories())
    mask_BT = trajectories.response_mask_BT
    columns = np.cumsum(mask_BT, axis=1)
    versions_BT = np.where(mask_BT, columns > 3, -1).astype(np.int32)
    found = newest_only(replace(trajectories, policy_version_BT=versions_BT))
    counts = mask_BT.sum(axis=1)
    wanted = np.where(counts > 3, counts - 3, counts)
    assert found.response_mask_BT.sum(axis=1).tolist() == wanted.tolist()
    assert not found.behaviour_logprobs_BT[~found.response_mask_BT].any()
    assert (found.policy_version_BT[~found.response_mask_BT] == -1).all()
    np.testing.assert_array_equal(found.segment_ids_BT, trajectories.segment_ids_BT)


def test_a_filter_that_needs_several_samples_is_refused_for_one():
    filters = {"mine": Deviation(), "any": AnySuccess()}
    check_filters(filters, 2)
    with pytest.raises(InputError, match=r"collector\.filters\.mine compares the samples .* of 1"):
        check_filters(filters, 1)


def test_a_term_that_the_reward_lacks_is_named(make_group):
    with pytest.raises(InputError, match="term=other is not a term of the reward, which has cor"):
        make_group([0, 1]).right("other")
