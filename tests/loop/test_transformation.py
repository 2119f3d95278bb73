"""Tests that transforms change what is trained, and nothing else of a batch."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.loop.filter.deviation import Deviation
from rl4p.loop.groups import joined
from rl4p.loop.metrics import batch_metrics, task_metrics
from rl4p.loop.transform.drop import Drop
from rl4p.loop.transform.relabel import Relabel
from rl4p.loop.transform.truncate import Truncate
from rl4p.loop.transformation import transformed
from rl4p.protocols.collection import Collected


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
        (lambda group: None, r"must return rl4p\.types\.Group, not None\."),
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
