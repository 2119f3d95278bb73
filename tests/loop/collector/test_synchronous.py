from dataclasses import dataclass, field

import jax
import numpy as np
import pytest

from rl4p.base.types import TrainState
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.source import PromptStream
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.demonstrations import Demonstrations


@dataclass(frozen=True, kw_only=True)
class Counting(Weighted):
    def __call__(self, trajectories, episodes, memory):
        return super().__call__(trajectories, episodes), memory + len(episodes)


@dataclass(frozen=True, kw_only=True)
class Length:
    weight: float = 1.0

    def __call__(self, episodes):
        return [float(len(episode.response)) for episode in episodes]


def test_a_step_takes_its_prompts_samples_groups_and_grades_them(policy, prompts, make_phases):
    stream = PromptStream(prompts, seed=0)
    expected = PromptStream(prompts, seed=0).take(6, 0)[3:]
    stream.take(3, 8)
    state = TrainState(
        step=jax.numpy.int32(9),
        params=None,
        optimizer_state=None,
        key=jax.random.key(0),
        memory={"reward": 100},
    )
    phases = make_phases(
        rollout=Demonstrations(max_response_tokens=40),
        reward=Counting(terms={"length": Length()}),
    )
    credited = []
    stream.credit = lambda step, episodes, rewards: credited.append((step, rewards.total_B))
    collector = Synchronous().open(phases, policy, stream, prompts_per_step=3, group_size=2)
    collected = collector.collect(state)
    asked = [episode.prompt for episode in collected.episodes]
    assert asked == [prompt for prompt in expected for _ in range(2)]
    assert collected.trajectories.group_ids_B.tolist() == [0, 0, 1, 1, 2, 2]
    assert set(np.ravel(collected.trajectories.policy_version_BT)) == {-1}  # demonstrations
    assert collected.memory == {"reward": 106}
    assert state.memory == {"reward": 100}
    assert (stream.epoch, stream.offset) == (1, 2)
    solutions = [len(prompt.solution or "") for prompt in asked]
    np.testing.assert_array_equal(collected.rewards.total_B, solutions)
    assert isinstance(collected.rewards.total_B, jax.Array)
    ((step, total_B),) = credited
    assert step == 9
    np.testing.assert_array_equal(total_B, solutions)
    assert collected.metrics.keys() == {"time/rollout", "time/reward"}
    assert collector.state() == {}


@dataclass(frozen=True, kw_only=True)
class Watched(Demonstrations):
    """A rollout with memory that records its calls."""

    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, policy, params, prompts, *, memory, **options):
        self.calls.append((params, options))
        return super().__call__(policy, params, prompts, **options), memory + 1


def test_a_rollout_is_of_this_steps_parameters_key_and_version(policy, prompts, make_phases):
    rollout = Watched(max_response_tokens=40)
    state = TrainState(
        step=jax.numpy.int32(9),
        params={"w": 1},
        optimizer_state=None,
        key=jax.random.key(5),
        memory={"rollout": 3, "kl": 2},
    )
    phases = make_phases(rollout=rollout, reward=Weighted(terms={"length": Length()}))
    source = PromptStream(prompts, seed=0)
    collector = Synchronous().open(phases, policy, source, prompts_per_step=2, group_size=3)
    collected = collector.collect(state)
    ((params, options),) = rollout.calls
    assert params is state.params
    wanted = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 9), 0)
    key = options.pop("key")
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(wanted))
    assert options == {"group_size": 3, "version": 9, "greedy": False}
    assert collected.memory == {"rollout": 4, "kl": 2}
    assert len(collected.episodes) == 6


@pytest.mark.slow
def test_a_step_has_the_metrics_of_its_rollout(policy, params, prompts, make_phases):
    state = TrainState(
        step=jax.numpy.int32(0),
        params=params,
        optimizer_state=None,
        key=jax.random.key(0),
        memory={},
    )
    phases = make_phases(
        rollout=Continuous(max_response_tokens=4, draft_tokens=2),
        reward=Weighted(terms={"length": Length()}),
    )
    stream = PromptStream(prompts, seed=0)
    collector = Synchronous().open(phases, policy, stream, prompts_per_step=2, group_size=2)
    assert collector.collect(state).metrics["rollout/tokens_per_decode_step"] == 1
