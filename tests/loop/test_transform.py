"""Tests the transforms of graded groups and their call."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.loop.checks import check_rewards, check_trajectories
from rl4p.loop.filter import Deviation, Length
from rl4p.loop.groups import joined
from rl4p.loop.metrics import batch_metrics, task_metrics
from rl4p.loop.transform import GFPO, Drop, Relabel, Truncate, transformed
from rl4p.protocols.collection import Collected


def test_a_group_is_dropped_unless_each_filter_keeps_it(make_group):
    drop = Drop(filters={"differ": Deviation(), "short": Length(most=3)})
    kept = make_group([1, 0])
    assert drop(kept) is kept
    for group in (make_group([1, 1]), make_group([1, 0], lengths=[4, 4])):
        dropped = drop(group)
        assert dropped.rewards.dropped_B.tolist() == [True, True]
        assert not dropped.rewards.valid_B.any()
        assert dropped.trajectories is group.trajectories
        assert dropped.episodes is group.episodes


def test_dropped_samples_have_no_grades_and_others_keep_theirs(make_group):
    group = make_group([1, 2, 3], valid=[True, True, False])
    once = group.without(np.array([True, False, False]))
    assert once.rewards.total_B.tolist() == [0, 2, 0]
    assert once.rewards.terms["correct"].tolist() == [0, 2, 0]
    assert once.rewards.valid_B.tolist() == [False, True, False]
    assert once.rewards.dropped_B.tolist() == [True, False, False]
    twice = once.without(np.array([False, True, False]))
    assert twice.rewards.dropped_B.tolist() == [True, True, False]  # the third: a grader failed
    assert twice.rewards.total_B.dtype == group.rewards.total_B.dtype
    assert twice.rewards.valid_B.dtype == bool


def test_a_drop_without_filters_is_refused():
    with pytest.raises(ValueError, match="drop needs a filter"):
        Drop(filters={})


def with_terms(group, **terms):
    arrays = {name: np.float32(values) for name, values in terms.items()}
    return replace(group, rewards=replace(group.rewards, terms=arrays))


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, [1, -1, 0, 0.75]),
        ({"term": None}, [-1, 1, 0, -1]),
        ({"right": 0.5, "wrong": 0.0}, [0.5, 0, 0, 0.75]),
    ],
)
def test_right_and_wrong_samples_get_their_rewards(make_group, options, total):
    """The third is invalid, and the term does not apply to the fourth."""
    group = make_group([0.5, 1.5, 9, 0.75], valid=[True, True, False, True])
    group = with_terms(group, correct=[1, 0, 0, np.nan])
    tokens_BT = np.ones(group.trajectories.tokens_BT.shape, np.float32)
    group = replace(group, rewards=replace(group.rewards, tokens_BT=tokens_BT))
    relabelled = Relabel(**options)(group)
    assert relabelled.rewards.total_B.tolist() == total
    assert relabelled.rewards.total_B.dtype == np.float32
    assert relabelled.rewards.tokens_BT is None
    assert relabelled.rewards.terms is group.rewards.terms
    assert group.rewards.total_B.tolist() == [0.5, 1.5, 0, 0.75]  # a pure function


def test_equal_rewards_are_refused():
    with pytest.raises(ValueError, match="both 1: all rewards would be equal"):
        Relabel(wrong=1.0)


@pytest.mark.parametrize(
    ("by", "kept"),
    [
        ("length", [True, False, False, True, False]),  # 2 and 3 tokens; the second is invalid
        ("efficiency", [False, False, True, True, False]),  # 1/8, 1/4, 1/3 and 0 per token
    ],
)
def test_the_best_samples_of_a_group_are_kept(make_group, by, kept):
    valid = [True, False, True, True, True]
    group = make_group([0.25, 9, 1, 1, 0], lengths=[2, 1, 4, 3, 5], valid=valid)
    after = GFPO(keep=2, by=by)(group).rewards
    assert after.valid_B.tolist() == kept
    np.testing.assert_array_equal(after.total_B, np.where(kept, [0.25, 9, 1, 1, 0], 0))
    assert group.rewards.valid_B.tolist() == valid  # a pure function


def test_the_first_of_equal_samples_are_kept_and_invalid_ones_never(make_group):
    group = make_group([1, 1, 1], lengths=[2, 2, 2], valid=[True, True, True])
    assert GFPO(keep=2)(group).rewards.valid_B.tolist() == [True, True, False]
    group = make_group([1, 1, 1], lengths=[2, 2, 2], valid=[False, False, True])
    assert GFPO(keep=2)(group).rewards.valid_B.tolist() == [False, False, True]


def test_the_first_tokens_of_each_response_are_trained(make_group):
    group = make_group([1, 0, 1], lengths=[2, 5, 3])
    before = group.trajectories
    tokens_BT = np.where(before.response_mask_BT, np.float32(0.25), np.float32(0))
    group = replace(group, rewards=replace(group.rewards, tokens_BT=tokens_BT))
    cut = Truncate(most=3)(group)
    after = cut.trajectories
    assert after.response_mask_BT.sum(axis=1).tolist() == [2, 3, 3]
    first = before.prompt_columns
    assert after.response_mask_BT[:, first : first + 2].all()
    prompt = before.segment_ids_BT[:, :first].sum(axis=1)
    assert (after.segment_ids_BT.sum(axis=1) - prompt).tolist() == [2, 3, 3]
    kept_BT = after.response_mask_BT
    np.testing.assert_array_equal(
        after.behaviour_logprobs_BT, np.where(kept_BT, before.behaviour_logprobs_BT, 0)
    )
    assert (after.policy_version_BT[~kept_BT] == -1).all()
    assert after.policy_version_BT[kept_BT].tolist() == [4] * 8
    assert cut.rewards.tokens_BT.sum(axis=1).tolist() == [0.5, 0.75, 0.75]
    assert cut.rewards.total_B is group.rewards.total_B
    assert after.tokens_BT is before.tokens_BT
    check_trajectories(after)
    check_rewards(cut.rewards, after)
    assert before.response_mask_BT.sum(axis=1).tolist() == [2, 5, 3]  # a pure function


def test_gaps_in_a_response_do_not_count(make_group):
    """The tokens of an environment between two turns stay, as far as later ones read them."""
    group = make_group([1], lengths=[5])
    mask_BT = group.trajectories.response_mask_BT.copy()
    first = group.trajectories.prompt_columns
    mask_BT[0, first + 1] = False
    group = replace(group, trajectories=replace(group.trajectories, response_mask_BT=mask_BT))
    cut = Truncate(most=2)(group).trajectories
    assert cut.response_mask_BT[0, first : first + 5].tolist() == [True, False, True, False, False]
    assert (cut.segment_ids_BT[0, first : first + 5] > 0).tolist() == [True] * 3 + [False] * 2


def test_short_responses_stay_the_same_object(make_group):
    group = make_group([1, 0], lengths=[2, 3])
    assert Truncate(most=3)(group) is group


@pytest.fixture
def collected(make_group, prompts, policy):
    """Three groups of two: rewards that differ, equal ones, and a sample that is not graded."""
    groups = [
        make_group([1, 0], lengths=[3, 5]),
        make_group([1, 1], lengths=[2, 4], prompt=prompts[1]),
        make_group([1, 0], lengths=[4, 4], prompt=prompts[2], valid=[True, False]),
    ]
    trajectories, episodes, rewards = joined(groups, policy.pad_id)
    return Collected(
        trajectories=trajectories, episodes=episodes, rewards=rewards, memory={}, metrics={"a": 1.0}
    )


def test_transforms_are_called_in_their_order_and_rows_stay_in_place(collected, policy, equal):
    transforms = {"same": Drop(filters={"differ": Deviation()}), "label": Relabel(wrong=-1.0)}
    result = transformed(transforms, policy, collected)
    assert result.rewards.total_B.tolist() == [1, -1, 0, 0, 0, 0]
    assert result.rewards.dropped_B.tolist() == [False, False, True, True, True, True]
    equal(result.trajectories, collected.trajectories)
    assert result.episodes == collected.episodes
    assert (result.memory, result.metrics) == ({}, {"a": 1.0})
    swapped = transformed(dict(reversed(transforms.items())), policy, collected)
    assert swapped.rewards.total_B.tolist() == [1, -1, 0, 0, 0, 0]
    one_third = transformed({"label": Relabel()}, policy, collected)
    assert one_third.rewards.total_B.tolist() == [1, -1, 1, 1, 1, 0]
    assert one_third.rewards.dropped_B is None


def test_dropped_samples_are_counted_apart_from_those_that_no_grader_could_grade(collected, policy):
    def metrics(batch):
        zeros_BT = np.zeros(batch.trajectories.tokens_BT.shape, np.float32)
        return batch_metrics(4, batch.trajectories, batch.rewards, zeros_BT)

    before = metrics(collected)
    assert "reward/dropped" not in before
    assert (before["reward/invalid"], before["reward/mean"]) == (1, 0.8)
    assert before["advantage/zero_std_groups"] == pytest.approx(2 / 3)
    result = transformed({"same": Drop(filters={"differ": Deviation()})}, policy, collected)
    after = metrics(result)
    assert (after["reward/dropped"], after["reward/invalid"], after["reward/mean"]) == (4, 0, 0.5)
    assert after["advantage/zero_std_groups"] == 0
    assert after["rollout/response_tokens"] == before["rollout/response_tokens"]
    tasks = [episode.prompt.task for episode in result.episodes]
    by_task = task_metrics(tasks, result.rewards, "correct")
    assert sum(x for name, x in by_task.items() if name.endswith("/invalid")) == 0


def test_shapes_stay_the_same_after_a_truncation(collected, policy):
    result = transformed({"short": Truncate(most=2)}, policy, collected)
    assert jax.tree.map(np.shape, result.trajectories) == jax.tree.map(
        np.shape, collected.trajectories
    )
    assert np.sum(result.trajectories.response_mask_BT, axis=1).tolist() == [2] * 6
    assert result.trajectories.group_size == collected.trajectories.group_size
    assert result.trajectories.prompt_columns == collected.trajectories.prompt_columns


def test_a_transform_that_leaves_nothing_is_named_in_one_sentence(collected, policy):
    def none(group):
        return group.without(np.ones(len(group.episodes), bool))

    transforms = {"short": Truncate(most=2), "all": none}
    with pytest.raises(
        RunError, match=r"^transforms\.all left no token to train on in a batch of "
    ):
        transformed(transforms, policy, collected)
    nothing = transformed({"short": Truncate(most=1)}, policy, replace(collected))
    valid_B = np.zeros(6, bool)
    failed = replace(nothing, rewards=replace(nothing.rewards, valid_B=valid_B))
    transformed({"all": none}, policy, failed)  # the graders left none before


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (lambda group: None, r"must return rl4p\.base\.types\.Group, not None\."),
        (
            lambda group: replace(group, episodes=group.episodes[:1]),
            r"must return the 2 samples of its group with their shapes and dtypes, not others\.",
        ),
        (
            lambda group: replace(group, rewards=replace(group.rewards, total_B=np.zeros(2))),
            r"must return the 2 samples .*",
        ),
    ],
)
def test_what_is_no_group_of_the_same_shape_is_refused(collected, policy, result, sentence):
    with pytest.raises(RunError, match=rf"^transforms\.mine \(.*\) {sentence}$"):
        transformed({"mine": result}, policy, collected)
