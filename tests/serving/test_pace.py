import math
from types import SimpleNamespace

import pytest

from rl4p.rollout.engine.decode import MOST_STEPS
from rl4p.serving.pace import FIRST_STEPS, SECONDS_PER_CALL, Pace, layout


def call(seconds, steps, size=4):
    return SimpleNamespace(seconds=seconds, outcome=SimpleNamespace(steps=steps), size=size)


def test_a_call_lasts_about_as_long_as_it_should():
    pace = Pace()
    assert pace.steps(4) == FIRST_STEPS
    pace.learn(call(math.nan, 8))  # it also placed sequences
    assert pace.steps(4) == FIRST_STEPS
    pace.learn(call(8 * 0.002, 8))
    assert pace.steps(4) == math.ceil(SECONDS_PER_CALL / 0.002)
    pace.learn(call(1.0, 1))  # clients had the processor
    assert pace.steps(4) == math.ceil(SECONDS_PER_CALL / 0.00204)
    pace.learn(call(1e-5, 1))
    assert pace.steps(4) == MOST_STEPS
    assert pace.steps(16) == FIRST_STEPS


@pytest.mark.parametrize(("slots", "sizes"), [(32, [4, 16, 32]), (20, [4, 16, 20]), (2, [2])])
def test_few_numbers_of_slots_compile(policy, slots, sizes):
    assert layout(policy, slots).sizes == sizes
