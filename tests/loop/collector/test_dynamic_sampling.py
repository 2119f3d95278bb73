"""Tests rounds of sampling until enough groups pass the filters."""

from dataclasses import dataclass, field, replace

import jax
import numpy as np
import pytest

from rl4p.base.types import TrainState
from rl4p.loop.cache import SuccessCache
from rl4p.loop.checks import check_trajectories
from rl4p.loop.collector.dynamic_sampling import DynamicSampling
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.filter import Deviation
from rl4p.loop.source import PromptStream
from rl4p.reward.weighted import Weighted
from rl4p.rollout.naive_sampler import NaiveSampler

P, G = 2, 2


@dataclass(frozen=True, kw_only=True)
class ByPrompt:
    """A term with a list of rewards for each prompt, one for each sample."""

    rewards: dict
    weight: float = 1.0

    def __call__(self, episodes):
        seen, found = {}, []
        for episode in episodes:
            id = episode.prompt.id
            seen[id] = seen.get(id, -1) + 1
            found.append(float(self.rewards[id][seen[id] % G]))
        return found


@dataclass
class Credited(PromptStream):
    """A stream that records its credits."""

    def __init__(self, prompts):
        super().__init__(prompts, 0)
        self.credits = []

    def credit(self, step, episodes, rewards):
        ids = [episode.prompt.id for episode in episodes[::G]]
        self.credits.append((step, ids, rewards.total_B.tolist()))


@dataclass(frozen=True, kw_only=True)
class Counted(NaiveSampler):
    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, policy, params, prompts, **options):
        self.calls.append(([prompt.id for prompt in prompts], options["key"]))
        return super().__call__(policy, params, prompts, **options)


@pytest.fixture
def run(policy, params, make_prompt, make_phases):
    """Opens a collector on prompts "0" to "9" with the given rewards."""

    def run(rewards, **options):
        asked = [make_prompt(id=str(i), tokens=(65 + i, 66)) for i in range(10)]
        source = Credited(asked)
        order = [prompt.id for prompt in PromptStream(asked, 0).take(10, 0)]
        by_id = {id: rewards[i] if i < len(rewards) else [0, 1] for i, id in enumerate(order)}
        rollout = Counted(max_response_tokens=4)
        phases = make_phases(
            rollout=rollout, reward=Weighted(terms={"correct": ByPrompt(rewards=by_id)})
        )
        filters = {"filters": {"deviation": Deviation()}}
        collector = DynamicSampling(**filters | options).open(
            phases, policy, source, prompts_per_step=P, group_size=G
        )
        state = TrainState(
            step=jax.numpy.int32(3),
            params=params,
            optimizer_state=None,
            key=jax.random.key(1),
            memory={},
        )
        return collector, state, source, order, rollout

    return run


def ids(collected):
    return [episode.prompt.id for episode in collected.episodes[::G]]


EQUAL, MIXED = [1, 1], [0, 1]


def test_groups_that_pass_at_once_are_a_synchronous_step(run, equal):
    collector, state, source, order, _ = run([MIXED] * 9)
    ours = collector.collect(state)
    collector.source = source = PromptStream(source.prompts, 0)
    other = Synchronous().open(
        collector.phases, collector.policy, source, prompts_per_step=P, group_size=G
    )
    theirs = other.collect(state)
    equal(ours.trajectories, theirs.trajectories)
    equal(ours.rewards, theirs.rewards)
    assert ours.episodes == theirs.episodes
    assert ids(ours) == order[:2]
    assert ours.metrics["collector/rounds"] == 1


@pytest.mark.slow
def test_rejected_groups_are_replaced_in_further_rounds(run):
    collector, state, source, order, rollout = run([EQUAL, MIXED, EQUAL, MIXED])
    collected = collector.collect(state)
    assert [asked for asked, _ in rollout.calls] == [order[:2], order[2:3], order[3:4]]
    keys = [jax.random.key_data(key).tolist() for _, key in rollout.calls]
    of_step = jax.random.fold_in(jax.random.key(1), 3)
    folded = [jax.random.key_data(jax.random.fold_in(of_step, n)).tolist() for n in (0, 2, 3)]
    assert keys == folded
    assert ids(collected) == [order[1], order[3]]
    assert collected.rewards.total_B.tolist() == [0, 1, 0, 1]
    assert isinstance(collected.trajectories.tokens_BT, jax.Array)
    check_trajectories(collected.trajectories)
    counts = {name: value for name, value in collected.metrics.items() if "collector" in name}
    assert counts == {
        "collector/rounds": 3,
        "collector/sampled": 4,
        "collector/rejected": 2,
        "collector/missing": 0,
        "collector/from_cache": 0,
    }
    assert source.credits == [(3, order[:4], [1, 1, 0, 1, 1, 1, 0, 1])]
    assert collected.metrics.keys() >= {"time/rollout", "time/reward"}


@dataclass(frozen=True, kw_only=True)
class Noting(Weighted):
    """A reward whose memory has the memory at each call, and the number of samples of the last."""

    def initial_state(self):
        return []

    def __call__(self, trajectories, episodes, memory):
        return super().__call__(trajectories, episodes), [*memory, len(episodes)]


def test_each_round_has_the_memory_that_the_one_before_left(run):
    collector, state, *_ = run([EQUAL, MIXED, EQUAL, MIXED])
    terms = collector.phases.reward.terms
    collector.phases = replace(collector.phases, reward=Noting(terms=terms))
    state = replace(state, memory={"reward": [99], "kl": "other"})
    collected = collector.collect(state)
    assert collected.memory == {"reward": [99, 2 * G, G, G], "kl": "other"}
    assert state.memory["reward"] == [99]


@pytest.mark.parametrize("otherwise", ["keep", "drop"])
def test_after_the_last_round_rejected_groups_fill_the_step(run, otherwise):
    collector, state, _, order, _ = run([EQUAL] * 9, rounds=2, otherwise=otherwise)
    collected = collector.collect(state)
    assert ids(collected) == order[2:4]  # the newest
    valid = np.asarray(collected.rewards.valid_B)
    assert valid.all() if otherwise == "keep" else not valid.any()
    assert collected.rewards.total_B.tolist() == ([1] * 4 if otherwise == "keep" else [0] * 4)
    assert collected.metrics["collector/missing"] == 2


@pytest.mark.slow
def test_prompts_that_were_not_needed_come_first_in_the_next_step(run):
    collector, state, source, order, rollout = run([MIXED] * 9, over_sampling=1.5)
    assert ids(collector.collect(state)) == order[:2]
    assert source.credits == [(3, order[:2], [0, 1, 0, 1])]
    saved = collector.state()
    assert saved["waiting"] == [[order[2], None]]
    restored, *_ = run([MIXED] * 9, over_sampling=1.5)
    restored.source.restore(source.state())
    restored.restore(saved)
    state = replace(state, step=jax.numpy.int32(4))
    assert ids(restored.collect(state)) == order[2:4]
    assert ids(collector.collect(state)) == order[2:4]
    assert [asked for asked, _ in rollout.calls] == [order[:3], order[2:5]]


@pytest.mark.parametrize(
    ("over", "sizes"),
    [
        (1.0, {32: 32, 17: 32, 16: 16, 9: 16, 5: 8, 4: 4, 1: 4}),
        (1.5, {32: 48, 16: 24, 5: 12, 1: 6}),
    ],
)
def test_rounds_have_few_sizes(run, over, sizes):
    """Each size is compiled, so one missing group must not be a size of its own."""
    collector, *_ = run([MIXED] * 9, over_sampling=over)
    collector.prompts_per_step = 32
    assert {missing: collector.size_of_round(missing) for missing in sizes} == sizes


@pytest.mark.slow
def test_rounds_are_as_large_as_the_mesh_divides(run, monkeypatch):
    collector, state, _, order, rollout = run([MIXED] * 9, over_sampling=1.5)
    monkeypatch.setattr(type(collector.policy.mesh), "row_shards", 8)
    collector.collect(state)
    assert rollout.calls[0][0] == order[:4]


def test_solutions_fill_groups_before_they_are_filtered(run):
    collector, state, source, order, _ = run([[0, 0], MIXED, MIXED, MIXED], cache=SuccessCache())
    first = collector.collect(state)
    assert ids(first) == order[1:3]
    collector.source.take(7, 0)  # the second epoch begins
    source.credits.clear()
    collector.waiting = [source.find(order[1])]
    failing = ByPrompt(rewards={id: [0, 0] for id in order})
    collector.phases = replace(collector.phases, reward=Weighted(terms={"correct": failing}))
    collected = collector.collect(replace(state, step=jax.numpy.int32(4)))
    assert ids(collected)[0] == order[1]
    assert collected.rewards.total_B.tolist()[:2] == [0, 1]
    assert collected.metrics["collector/from_cache"] >= 1
    ((_, credited, rewards),) = source.credits
    assert credited[0] == order[1]
    assert not any(rewards)  # the source is told what the policy did
    assert collector.state()["cache"]["ids"]


def test_a_collector_without_filters_is_refused():
    with pytest.raises(ValueError, match="filters is empty, so every group is accepted"):
        DynamicSampling()
