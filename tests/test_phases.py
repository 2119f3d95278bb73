"""What the loop asks of the four phases as a whole."""

from dataclasses import dataclass, field

import pytest

from rl4p.errors import InputError
from rl4p.update.ppo import PPO


@dataclass(frozen=True, kw_only=True)
class Counting:
    """A phase with memory."""

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


def test_an_update_with_memory_is_refused(phases):
    with pytest.raises(InputError, match="An update keeps no memory"):
        phases(update=Counting()).initial_memory()


def test_needs_are_the_union(phases):
    assert phases().needs() == frozenset()
    assert phases(update=PPO(epochs=2)).needs() == {"proximal_logprobs"}
    assert phases(advantage=Counting(needs=frozenset({"proximal_logprobs"}))).needs() == {
        "proximal_logprobs"
    }


def test_a_need_that_nobody_meets_is_refused(phases):
    with pytest.raises(InputError, match="luck"):
        phases(advantage=Counting(needs=frozenset({"luck"}))).needs()


def test_checks_see_the_result_and_the_arguments(phases):
    seen = []
    ours = phases(checks={"reward": lambda result, *args: seen.append((result, args))})
    ours.call("reward", {}, 2)
    assert seen == [(20, (2,))]
