from dataclasses import dataclass

import jax
import numpy as np

from rl4p.collector.synchronous import Synchronous
from rl4p.data.stream import PromptStream
from rl4p.reward.weighted import Weighted
from rl4p.rollout.demonstrations import Demonstrations
from rl4p.stopwatch import Stopwatch
from rl4p.types import TrainState


@dataclass(frozen=True, kw_only=True)
class Counting(Weighted):
    def __call__(self, trajectories, texts, memory):
        return super().__call__(trajectories, texts), memory + len(texts.responses)


@dataclass(frozen=True, kw_only=True)
class Length:
    weight: float = 1.0

    def __call__(self, texts):
        return [float(len(response)) for response in texts.responses]


def test_a_step_takes_its_prompts_samples_groups_and_grades_them(policy, prompts, make_phases):
    stream, watch = PromptStream(prompts, seed=0), Stopwatch()
    expected = PromptStream(prompts, seed=0).take(6)[3:]
    stream.take(3)
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
    collected = Synchronous()(
        phases, policy, state, stream, watch, prompts_per_step=3, group_size=2
    )
    assert collected.texts.prompts == tuple(prompt for prompt in expected for _ in range(2))
    assert collected.trajectories.group_ids_B.tolist() == [0, 0, 1, 1, 2, 2]
    assert collected.trajectories.policy_version_B.tolist() == [-1] * 6  # demonstrations
    assert collected.memory == {"reward": 106}
    assert state.memory == {"reward": 100}
    assert (stream.epoch, stream.offset) == (1, 2)
    solutions = [len(prompt.solution or "") for prompt in collected.texts.prompts]
    np.testing.assert_array_equal(collected.rewards.total_B, solutions)
    assert isinstance(collected.rewards.total_B, jax.Array)
    assert watch.seconds.keys() == {"rollout", "reward"}


@dataclass(frozen=True, kw_only=True)
class Remembering(Demonstrations):
    def __call__(self, *args, memory, **options):
        return super().__call__(*args, **options), memory + 1


def test_what_a_rollout_remembers_is_kept(policy, prompts, make_phases):
    state = TrainState(
        step=jax.numpy.int32(0),
        params=None,
        optimizer_state=None,
        key=jax.random.key(0),
        memory={"rollout": 5},
    )
    phases = make_phases(
        rollout=Remembering(max_response_tokens=40), reward=Weighted(terms={"length": Length()})
    )
    stream = PromptStream(prompts, seed=0)
    collected = Synchronous()(
        phases, policy, state, stream, Stopwatch(), prompts_per_step=2, group_size=1
    )
    assert collected.memory == {"rollout": 6}
