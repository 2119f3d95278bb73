from collections import defaultdict
from dataclasses import dataclass

import jax
import pytest

from rl4p.base.errors import InputError
from rl4p.loop import background
from rl4p.loop import stopwatch as compilation
from rl4p.loop.background import Times, WorkingTime, check_phases
from rl4p.loop.stopwatch import Spans
from rl4p.reward.answers import Correct
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.demonstrations import Demonstrations

TERMS = {"correct": Correct()}
USUAL = {"rollout": Continuous(max_response_tokens=4), "reward": Weighted(terms=TERMS)}


@dataclass(frozen=True, kw_only=True)
class Remembering(Weighted):
    def initial_state(self):
        return {}


def test_an_engine_and_a_reward_without_memory_can(make_phases):
    check_phases(make_phases(**USUAL))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"rollout": Demonstrations(max_response_tokens=4)},
            "needs a rollout with an engine: choose rollout=continuous, or collector=synchronous.",
        ),
        (
            {"reward": Remembering(terms=TERMS)},
            "cannot keep the memory of the reward: choose collector=synchronous.",
        ),
    ],
)
def test_other_phases_are_refused(make_phases, changed, sentence):
    with pytest.raises(InputError, match=sentence):
        check_phases(make_phases(**USUAL | changed))


def test_several_processes_are_refused(make_phases, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="one process, but there are 2: choose collector=synch"):
        check_phases(make_phases(**USUAL))


def test_work_counts_for_the_times_in_which_it_is_done(monkeypatch):
    clock = iter([0.0, 1.0, 8.0, 20.0])
    monkeypatch.setattr(background, "clock", lambda: next(clock))
    monkeypatch.setattr(compilation, "COMPILING", defaultdict(Spans))
    working = WorkingTime("sampling")  # at 0
    working.begin()  # at 1
    assert working.read(4.0) == Times(busy=3.0, idle=1.0)
    working.end()  # at 8
    assert working.read(10.0) == Times(busy=4.0, idle=2.0)
    assert working.read(15.0) == Times(busy=0.0, idle=5.0)
    working.end()  # at 20, without work
    assert working.read(21.0) == Times(busy=0.0, idle=6.0)


def test_compilation_is_neither_work_nor_idle(monkeypatch):
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(background, "clock", lambda: next(clock))
    monkeypatch.setattr(compilation, "COMPILING", compiling := defaultdict(Spans))
    working = WorkingTime("sampling")  # at 0
    working.begin()  # at 1
    compiling["sampling"].add(2.0, 3.5)
    compiling["grading"].add(1.0, 4.0)  # another thread's
    assert working.read(5.0) == Times(busy=2.5, idle=1.0)
    assert working.read(6.0) == Times(busy=1.0, idle=0.0)
