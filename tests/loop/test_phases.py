"""Tests the calls of the loop to all phases."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.gae import GAE
from rl4p.base.errors import InputError
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import Adaptive as AdaptiveEntropy
from rl4p.learner.kl import Adaptive as AdaptiveKL
from rl4p.reward.weighted import Weighted
from rl4p.update.ppo import PPO

EPISODES = (SimpleNamespace(failure=None),) * 8  # of which phases see nothing else here


@dataclass(frozen=True, kw_only=True)
class Counting:
    """A phase whose memory counts its calls."""

    needs: frozenset = field(default=frozenset())

    def initial_state(self):
        return 0

    def __call__(self, x, memory):
        return x + memory, memory + 1


def plain(x):
    return 10 * x


@pytest.fixture
def phases(make_phases):
    def make(**changes):
        return make_phases(
            **{"rollout": plain, "reward": plain, "advantage": plain, "update": PPO()} | changes
        )

    return make


@pytest.fixture
def rows(make_trajectories, make_rewards):
    """Trajectories of eight rows, and their rewards."""
    return make_trajectories(), make_rewards([1.0] * 8)


@dataclass(frozen=True, kw_only=True)
class Remembering:
    """A rollout, a reward or an advantage whose memory counts its calls."""

    call: Callable[..., Any]

    def initial_state(self):
        return 0

    def __call__(self, *arguments, memory, **options):
        return self.call(*arguments, **options), memory + 1


def test_memory_is_carried_from_call_to_call_and_others_have_none(phases, rows):
    trajectories, rewards = rows

    def draw(policy, params, prompts, **options):
        return trajectories, prompts

    def grade(trajectories, episodes):
        return rewards

    def weigh(trajectories, rewards):
        return trajectories.behaviour_logprobs_BT

    parts = {"rollout": draw, "reward": grade, "advantage": weigh}
    for name in parts:
        ours = phases(**parts | {name: Remembering(call=parts[name])})
        memory = ours.initial_memory()
        assert memory == {name: 0}
        for calls in (1, 2, 3):
            (sampled, episodes), memory = ours.sample(
                memory, None, {}, EPISODES, group_size=1, key=None, version=0
            )
            assert sampled is trajectories
            assert episodes == EPISODES
            graded, memory = ours.grade(memory, trajectories, episodes)
            assert graded is rewards
            estimated, memory = ours.estimate(memory, trajectories, rewards, {}, jnp.float32(0))
            np.testing.assert_array_equal(
                estimated.advantages_BT, trajectories.behaviour_logprobs_BT
            )
            assert memory == {name: calls}


def test_threads_take_turns_with_the_reward(phases, rows):
    inside, second, most = [], threading.Event(), []
    trajectories, rewards = rows

    def reward(trajectories, episodes):
        inside.append(1)
        second.wait(0.2)  # in which another thread would come in
        most.append(len(inside))
        inside.pop()
        return rewards

    ours = phases(reward=reward)
    changed = replace(ours, rollout=Counting())  # as an evaluation with a rollout of its own
    threads = [
        threading.Thread(target=each.grade, args=({}, trajectories, EPISODES))
        for each in (ours, changed, ours)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1, 1, 1]


def test_an_update_with_memory_is_refused(phases):
    for name in ("update", "correction", "critic"):
        with pytest.raises(InputError, match=f"{name} has an initial_state but cannot keep memory"):
            phases(**{name: Counting()}).initial_memory()


def test_needs_are_the_union(phases):
    assert phases().needs() == frozenset()
    assert phases(update=PPO(epochs=2)).needs() == {"proximal_logprobs"}
    assert phases(advantage=Counting(needs=frozenset({"proximal_logprobs"}))).needs() == {
        "proximal_logprobs"
    }


@pytest.mark.parametrize(
    ("name", "need", "given"),
    [
        ("rollout", "entropy", "no scores"),
        ("reward", "reference_logprobs", "no scores"),
        ("kl", "entropy", r"only \['reference_logprobs'\]"),
        ("entropy", "collision", r"only \['entropy'\]"),
        ("critic", "entropy", "no scores"),
    ],
)
def test_a_need_that_would_not_reach_its_phase_is_refused(phases, name, need, given):
    sentence = rf"{name} needs \['{need}'\], but the loop passes {given} to"
    with pytest.raises(InputError, match=sentence):
        phases(**{name: Counting(needs=frozenset({need}))}).needs()


def test_a_term_of_the_reward_is_given_no_scores_and_keeps_no_memory(phases):
    reward = Weighted(terms={"odd": SimpleNamespace(weight=1.0, needs={"entropy"})})
    with pytest.raises(InputError, match=r"reward needs \['entropy'\], but .* passes no scores"):
        phases(reward=reward).needs()
    with pytest.raises(ValueError, match=r"terms\.odd has an initial_state"):
        Weighted(terms={"odd": Counting()})


def test_a_correction_is_given_what_it_needs(phases):
    assert phases(correction=Counting(needs=frozenset({"entropy"}))).needs() == {"entropy"}


def test_values_and_a_critic_go_together(phases):
    with pytest.raises(InputError, match="choose critic=shared or critic=separate"):
        phases(advantage=GAE()).needs()
    with pytest.raises(InputError, match="A critic needs advantage=gae"):
        phases(critic=Shared()).needs()
    assert phases(critic=Shared(), advantage=GAE()).needs() == {"values"}


def test_a_need_that_nobody_meets_is_refused(phases):
    with pytest.raises(InputError, match="luck"):
        phases(advantage=Counting(needs=frozenset({"luck"}))).needs()


@pytest.mark.parametrize("name", ["rollout", "reward"])
def test_closing_ends_what_a_phase_has_opened(make_phases, name):
    closed = []
    make_phases(**{name: SimpleNamespace(close=lambda: closed.append(1))}).close()
    make_phases(**{name: SimpleNamespace()}).close()
    assert closed == [1]


def test_controllers_are_given_what_is_theirs(phases):
    ours = phases(kl=AdaptiveKL(beta=0.5, target=1.0), entropy=AdaptiveEntropy(alpha=0.25))
    memory = ours.initial_memory()
    found = ours.coefficients(memory, 0)
    assert (float(found["kl"]), float(found["entropy"])) == (0.5, 0.25)
    metrics = {"update/kl": jnp.float32(1.0), "update/entropy": jnp.float32(7.0)}
    after = ours.adapt(memory | {"advantage": 1}, metrics)
    assert after["advantage"] == 1
    assert float(after["kl"]["coefficient"]) == 0.5  # the divergence is at its target
    assert float(after["entropy"]["entropy"]) == 7.0


def test_checks_see_the_result_and_the_arguments(phases, rows):
    seen = []
    trajectories, rewards = rows
    checks = {
        "rollout": lambda result, policy, *, version: seen.append((result, policy, version)),
        "reward": lambda *arguments: seen.append(arguments),
        "advantage": lambda *arguments: seen.append(arguments[1:]),
    }
    ours = phases(
        rollout=lambda *arguments, **options: (trajectories, "episodes"),
        reward=lambda trajectories, episodes: rewards,
        advantage=lambda trajectories, rewards: trajectories.behaviour_logprobs_BT,
        checks=checks,
    )
    ours.sample({}, "policy", {}, (), group_size=1, key=None, version=7)
    ours.grade({}, trajectories, EPISODES)
    ours.estimate({}, trajectories, rewards, {}, jnp.float32(0))
    assert seen[0] == ((trajectories, "episodes"), "policy", 7)
    assert [tuple(map(id, each)) for each in seen[1:]] == [
        (id(rewards), id(trajectories)),
        (id(trajectories), id(rewards)),
    ]
