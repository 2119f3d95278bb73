"""Tests a collector that samples with earlier parameters."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.types import TrainState
from rl4p.loop.collector.lagged import Lagged
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.source import PromptStream
from rl4p.reward.answers import Correct
from rl4p.reward.weighted import Weighted
from rl4p.rollout.naive_sampler import NaiveSampler

P, G = 2, 2


@pytest.fixture
def states(params):
    """The states of six steps, with different parameters."""

    def changed(step):
        return TrainState(
            step=jax.numpy.int32(step),
            params=jax.tree.map(lambda x: x * (1 + 0.3 * step), params),
            optimizer_state=None,
            key=jax.random.key(1),
            memory={},
        )

    return [changed(step) for step in range(6)]


@pytest.fixture
def opened(policy, make_prompt, make_phases):
    def opened(collector):
        prompts = [make_prompt(id=str(i), tokens=(65 + i, 66)) for i in range(20)]
        reward = Weighted(terms={"correct": Correct()})
        phases = make_phases(rollout=NaiveSampler(max_response_tokens=6), reward=reward)
        source = PromptStream(prompts, 0)
        return collector.open(phases, policy, source, prompts_per_step=P, group_size=G)

    return opened


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 3])
def test_each_step_samples_with_the_parameters_of_an_earlier_one(opened, states, equal, lag):
    ours, other = opened(Lagged(lag=lag)), opened(Synchronous())
    for step, state in enumerate(states):
        earlier = max(0, step - lag)
        found = ours.collect(state)
        wanted = other.collect(replace(state, params=states[earlier].params))
        assert found.episodes == wanted.episodes
        versions_BT = np.asarray(found.trajectories.policy_version_BT)
        assert set(versions_BT[found.trajectories.response_mask_BT].tolist()) == {earlier}
        as_theirs = wanted.trajectories.policy_version_BT
        equal(replace(found.trajectories, policy_version_BT=as_theirs), wanted.trajectories)
    # Updates donate the parameters of their states.
    for state in states[:-1]:
        jax.tree.map(lambda x: x.delete(), state.params)
    last = replace(states[-1], step=jax.numpy.int32(6))
    assert len(ours.collect(last).episodes) == P * G


@pytest.mark.quick(1)
@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_restored_collector_goes_on_with_the_same_parameters(opened, states, equal, lag, at):
    whole, first, second = (opened(Lagged(lag=lag)) for _ in range(3))
    wanted = [whole.collect(state) for state in states]
    for state in states[:at]:
        first.collect(state)
    saved = first.state()
    assert len(saved["params"]) == min(lag, at)
    second.restore(saved)
    second.source.restore(first.source.state())
    again = opened(Lagged(lag=lag))
    again.restore(second.state())  # before the parameters are on a device again
    again.source.restore(first.source.state())
    for collector in (second, again):
        for state, other in zip(states[at:], wanted[at:], strict=True):
            found = collector.collect(state)
            assert found.episodes == other.episodes
            equal(found.trajectories, other.trajectories)
