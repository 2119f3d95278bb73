"""Tests the calls of the loop to all phases."""

import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from rl4p.advantage.gae import GAE
from rl4p.errors import InputError
from rl4p.learner.critic.shared import Shared
from rl4p.learner.entropy.adaptive import Adaptive as AdaptiveEntropy
from rl4p.learner.kl.adaptive import Adaptive as AdaptiveKL
from rl4p.reward.weighted import Weighted
from rl4p.update.ppo import PPO


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


def test_memory_is_carried_from_call_to_call_and_others_have_none(phases):
    ours = phases(advantage=Counting())
    memory = ours.initial_memory()
    assert memory == {"advantage": 0}
    results = []
    for _ in range(3):
        result, memory = ours.call("advantage", memory, 5)
        results.append(result)
        assert ours.call("reward", memory, 5) == (50, memory)
    assert results == [5, 6, 7]


def test_threads_take_turns_with_the_reward(phases):
    inside, second, most = [], threading.Event(), []

    def reward(x):
        inside.append(x)
        second.wait(0.2)  # in which another thread would come in
        most.append(len(inside))
        inside.remove(x)
        return x

    ours = phases(reward=reward)
    changed = replace(ours, advantage=Counting())  # as the loop does
    calls = [(ours, 1), (changed, 2), (ours, 3)]
    threads = [threading.Thread(target=of.call, args=("reward", {}, x)) for of, x in calls]
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


def test_checks_see_the_result_and_the_arguments(phases):
    seen = []
    ours = phases(checks={"reward": lambda result, *args: seen.append((result, args))})
    ours.call("reward", {}, 2)
    assert seen == [(20, (2,))]
