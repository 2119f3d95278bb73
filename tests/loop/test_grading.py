"""Tests that each process grades its own groups, and that all receive all grades."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl4p.loop.phases
from rl4p.base.errors import RunError
from rl4p.base.types import Rewards
from rl4p.loop.phases import graded
from rl4p.reward.weighted import Weighted

MASKED = ("tokens_BT", "response_mask_BT", "group_ids_B")


@dataclass(frozen=True, kw_only=True)
class Seeing(Weighted):
    """A reward that records its trajectories and episodes."""

    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, trajectories, episodes):
        self.calls.append((trajectories, episodes))
        return super().__call__(trajectories, episodes)


@dataclass(frozen=True, kw_only=True)
class Remembering(Seeing):
    """A reward that adds the number of its rows to its memory."""

    def __call__(self, trajectories, episodes, memory):
        return super().__call__(trajectories, episodes), memory + len(episodes)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A term that reads the grade from the response."""

    weight: float = 2.0

    def __call__(self, episodes):
        return [float(episode.response) for episode in episodes]


@pytest.fixture
def batch(make_trajectories, make_prompt, make_episodes):
    """Returns three groups of two rows."""
    trajectories = replace(make_trajectories((3,) * 6, group_ids=(0, 0, 1, 1, 2, 2)), group_size=2)
    prompts = tuple(make_prompt(id=str(i // 2)) for i in range(6))
    return trajectories, make_episodes("012345", prompts)


@pytest.fixture
def in_process(monkeypatch):
    """Returns a function that runs the reward phase as if in one of several processes.

    The rows of the other processes are gathered as -1.
    """

    def among(process, count):
        gathered = []

        def share(things):
            bounds = [i * things // count for i in range(count + 1)]
            return [range(*pair) for pair in pairwise(bounds)]

        def gather(rewards, rows):
            gathered.append(rows)

            def widened(x):
                whole = np.full((rows[-1].stop, *x.shape[1:]), -1).astype(x.dtype)
                whole[rows[process].start : rows[process].stop] = x
                return whole

            return jax.tree.map(widened, rewards)

        monkeypatch.setattr(rl4p.loop.phases, "share", share)
        monkeypatch.setattr(rl4p.loop.phases, "gathered_rows", gather)
        monkeypatch.setattr(jax, "process_index", lambda: process)
        return gathered

    return among


def test_one_process_grades_all_rows_as_they_are(batch, make_phases):
    reward = Seeing(terms={"stated": Stated()})
    rewards, memory = graded(make_phases(reward=reward), {"kl": 1}, *batch)
    np.testing.assert_array_equal(rewards.total_B, np.arange(6) * 2.0)
    assert memory == {"kl": 1}
    ((trajectories, episodes),) = reward.calls
    assert trajectories is batch[0]
    assert episodes is batch[1]


@pytest.mark.parametrize(("count", "parts"), [(2, [(0, 2), (2, 6)]), (3, [(0, 2), (2, 4), (4, 6)])])
def test_a_process_grades_whole_groups_of_its_own(batch, make_phases, in_process, count, parts):
    trajectories, episodes = batch
    seen = []
    for process, (start, stop) in enumerate(parts):
        reward = Seeing(terms={"stated": Stated()})
        gathered = in_process(process, count)
        rewards, _ = graded(make_phases(reward=reward), {}, *batch)
        assert gathered == [[range(*part) for part in parts]]
        np.testing.assert_array_equal(rewards.total_B[start:stop], 2.0 * np.arange(start, stop))
        ((own, own_episodes),) = reward.calls
        assert own_episodes == episodes[start:stop]
        for name in MASKED:
            np.testing.assert_array_equal(
                getattr(own, name), getattr(trajectories, name)[start:stop]
            )
            assert isinstance(getattr(own, name), np.ndarray)
        seen += own_episodes
    assert tuple(seen) == episodes


def test_a_reward_with_memory_sees_all_rows_in_every_process(batch, make_phases, in_process):
    for process in range(2):
        reward = Remembering(terms={"stated": Stated()})
        gathered = in_process(process, 2)
        rewards, memory = graded(make_phases(reward=reward), {"reward": 100}, *batch)
        np.testing.assert_array_equal(rewards.total_B, 2.0 * np.arange(6))
        assert memory == {"reward": 106}
        assert gathered == []
        ((trajectories, _),) = reward.calls
        assert isinstance(trajectories.tokens_BT, np.ndarray)  # no other process's devices


def test_more_processes_than_groups_grade_all_rows_each(batch, make_phases, in_process):
    reward = Seeing(terms={"stated": Stated()})
    gathered = in_process(1, 4)
    rewards, _ = graded(make_phases(reward=reward), {}, *batch)
    np.testing.assert_array_equal(rewards.total_B, 2.0 * np.arange(6))
    assert gathered == []


def test_rows_of_groups_of_unknown_size_are_divided_one_by_one(batch, make_phases, in_process):
    trajectories = replace(batch[0], group_size=1, tokens_BT=jnp.copy(batch[0].tokens_BT))
    reward = Seeing(terms={"stated": Stated()})
    in_process(0, 4)
    rewards, _ = graded(make_phases(reward=reward), {}, trajectories, batch[1])
    np.testing.assert_array_equal(rewards.total_B, [0.0, *[-1.0] * 5])


@dataclass(frozen=True, kw_only=True)
class Largest:
    """A term that gives 1 to the largest number of a group."""

    weight: float = 1.0
    whole_groups: bool = True

    def __call__(self, groups):
        texts = [[episode.response for episode in group] for group in groups]
        return [[text == max(group) for text in group] for group in texts]


@pytest.mark.parametrize("size", [1, 2])
def test_groups_that_terms_compare_stay_whole_in_any_order(batch, make_phases, in_process, size):
    """The groups are 2 (rows 0 and 4), 0 (rows 1 and 2), and 1 (rows 3 and 5)."""
    group_ids_B = jnp.asarray([2, 0, 0, 1, 2, 1], jnp.int32)
    trajectories = replace(batch[0], group_size=size, group_ids_B=group_ids_B)
    owners = np.zeros(6, int)
    for process, expected in enumerate([{1, 2}, {0, 3, 4, 5}]):
        reward = Seeing(terms={"largest": Largest(), "stated": Stated()})
        in_process(process, 2)
        rewards, _ = graded(make_phases(reward=reward), {}, trajectories, batch[1])
        ((own, episodes),) = reward.calls
        mine_B = rewards.total_B != -1
        assert set(np.flatnonzero(mine_B)) == expected
        assert {int(episode.response) for episode in episodes} == expected
        np.testing.assert_array_equal(
            own.group_ids_B, [group_ids_B[int(episode.response)] for episode in episodes]
        )
        largest_B = np.array([0, 0, 1, 0, 1, 1])
        np.testing.assert_array_equal(
            rewards.total_B[mine_B], (2 * np.arange(6) + largest_B)[mine_B]
        )
        owners += mine_B
    assert (owners == 1).all()


@dataclass(frozen=True, kw_only=True)
class Returns:
    """A reward that returns a fixed result."""

    result: Any

    def __call__(self, trajectories, episodes):
        return self.result


SOUND = Rewards(
    total_B=np.arange(6, dtype=np.float32),
    terms={"a": np.array([0, np.nan, 1, 1, 1, 1], np.float32)},
    valid_B=np.array([True] * 5 + [False]),
)


def test_a_sound_result_is_handed_on_as_it_is(batch, make_phases):
    rewards, _ = graded(make_phases(reward=Returns(result=SOUND)), {}, *batch)
    assert rewards is SOUND


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (None, r"rl4p\.base\.types\.Rewards, not None"),
        ([1.0] * 6, r"rl4p\.base\.types\.Rewards, not a list"),
        (replace(SOUND, total_B=[1.0] * 6), r"total_B as an array of float .*\(6,\), not a list"),
        (replace(SOUND, total_B=np.zeros((6, 1))), r"total_B .*, not with the shape \(6, 1\)"),
        (replace(SOUND, total_B=np.zeros(6, int)), r"total_B .*, not of int64"),
        (replace(SOUND, valid_B=np.ones(6)), r"valid_B as an array of bool .*, not of float64"),
        (replace(SOUND, valid_B=None), r"valid_B .*, not None"),
        (replace(SOUND, late_B=np.ones(5, bool)), r"late_B .*, not with the shape \(5,\)"),
        (replace(SOUND, terms=None), r"terms as a dictionary of arrays by name, not None"),
        (replace(SOUND, terms={"a": 1.0}), r"a as an array of float .*, not a float"),
    ],
)
def test_a_wrong_result_is_refused_in_one_sentence(batch, make_phases, result, sentence):
    with pytest.raises(
        RunError, match=rf"^reward \({__name__}\.Returns\) must return {sentence}\.$"
    ):
        graded(make_phases(reward=Returns(result=result)), {}, *batch)


@pytest.mark.parametrize(
    ("field", "number"),
    [
        *(("total_B", number) for number in (np.nan, np.inf, 1e300, -4e38)),
        *(("a", number) for number in (np.inf, 1e300)),  # nan: the term does not apply
    ],
)
def test_a_number_beyond_float32_is_an_invalid_sample_and_is_told(
    batch, make_phases, caplog, number, field
):
    values_B = np.array([1, 1, number, 1, 1, number])  # the last is invalid already
    changes = {"total_B": values_B} if field == "total_B" else {"terms": {"a": values_B}}
    result = replace(SOUND, **changes)
    rewards, _ = graded(make_phases(reward=Returns(result=result)), {}, *batch)
    assert rewards.valid_B.tolist() == [True, True, False, True, True, False]
    for values in (rewards.total_B, rewards.terms["a"]):
        assert values.dtype == np.float32
        assert values[~rewards.valid_B].tolist() == [0.0, 0.0]
        assert not np.isinf(values).any()
    assert "reward (Returns) gave 1 of 6 samples a number that is not finite" in caplog.text
    assert rewards.total_B[:2].tolist() == np.float32(result.total_B[:2]).tolist()
