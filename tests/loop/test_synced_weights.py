"""Tests that steps between two syncs sample with the weights of the last sync."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.learner.optimizer import AdamW
from rl4p.loop.collector.asynchronous import Asynchronous
from rl4p.loop.collector.dynamic_sampling import DynamicSampling
from rl4p.loop.collector.lagged import Lagged
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.filter import LeastReward
from rl4p.loop.source import PromptStream
from rl4p.reward.answers import Correct
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous

P, G = 2, 2
COLLECTORS = {
    "synchronous": Synchronous(),
    "dynamic_sampling": DynamicSampling(filters={"any": LeastReward(least=0.0)}),
    "asynchronous": Asynchronous(ahead=0),
}


@pytest.fixture
def states(params, make_state):
    """The states of six steps, with different parameters."""
    first = make_state(params, AdamW(learning_rate=1e-2))

    def changed(step):
        return replace(
            first,
            step=jax.numpy.int32(step),
            params=jax.tree.map(lambda x: x * (1 + 0.3 * step), first.params),
        )

    return [changed(step) for step in range(6)]


@pytest.fixture
def opened(policy, make_prompt, make_phases):
    collectors = []

    def opened(collector, sync_every=1):
        prompts = [make_prompt(id=str(i), tokens=(65 + i, 66)) for i in range(20)]
        phases = make_phases(
            rollout=Continuous(max_response_tokens=6, sync_every=sync_every),
            reward=Weighted(terms={"correct": Correct()}),
        )
        source = PromptStream(prompts, 0)
        collectors.append(collector.open(phases, policy, source, prompts_per_step=P, group_size=G))
        return collectors[-1]

    yield opened
    for collector in collectors:
        collector.close()


def versions(collected):
    trajectories = collected.trajectories
    versions_BT = np.asarray(trajectories.policy_version_BT)
    return set(versions_BT[np.asarray(trajectories.response_mask_BT)].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTORS)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_weights_are_synced_every_n_steps(opened, states, equal, name, every):
    ours, theirs = opened(COLLECTORS[name], every), opened(Synchronous())
    for step, state in enumerate(states):
        synced = step // every * every
        collected = ours.collect(state)
        wanted = theirs.collect(replace(state, params=states[synced].params))
        assert versions(collected) == {synced}
        own = collected.trajectories
        equal(own.tokens_BT, wanted.trajectories.tokens_BT)
        equal(own.behaviour_logprobs_BT, wanted.trajectories.behaviour_logprobs_BT)
        assert collected.episodes == wanted.episodes


@pytest.mark.parametrize("name", COLLECTORS)
def test_the_weights_of_the_last_sync_outlive_updates_and_restarts(opened, states, name):
    first, second = opened(COLLECTORS[name], 3), opened(COLLECTORS[name], 3)
    first.collect(states[0])
    first.collect(states[1])
    saved, source = first.state(), first.source.state()
    for state in states[:2]:  # updates donate the parameters of their states
        jax.tree.map(lambda x: x.delete(), state.params)
    second.restore(saved)
    second.source.restore(source)
    collected, again = first.collect(states[2]), second.collect(states[2])
    assert versions(again) == {0}
    assert again.episodes == collected.episodes
    assert synced_of(first) == synced_of(second) == {}  # the next step has new weights


def synced_of(collector):
    return collector.weights.state()


def test_tokens_between_two_syncs_are_not_too_old_for_an_asynchronous_collector(opened):
    limits = opened(Asynchronous(ahead=1), 3).pending.limits
    assert limits.max_staleness == 3
    with pytest.raises(InputError, match="make tokens 3 steps old, but"):
        opened(Asynchronous(ahead=1, max_staleness=2), 3)


def test_a_lagged_collector_chooses_the_weights_itself(opened):
    with pytest.raises(InputError, match="and collector=lagged both choose"):
        opened(Lagged(lag=1), 2)
