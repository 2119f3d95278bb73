import pytest

from rl4p.rollout.annealing import Linear


def test_the_temperature_changes_linearly_and_then_stays():
    annealing = Linear(end=0.5, steps=4)
    assert [annealing(1.5, step) for step in range(7)] == [1.5, 1.25, 1.0, 0.75, 0.5, 0.5, 0.5]


def test_it_returns_to_its_start_after_each_period():
    annealing = Linear(end=1.4, steps=2, period=4)
    found = [annealing(1.0, step) for step in range(9)]
    assert found == pytest.approx([1.0, 1.2, 1.4, 1.4] * 2 + [1.0])


@pytest.mark.parametrize("period", [3, 4])
def test_a_period_without_its_end_is_refused(period):
    with pytest.raises(ValueError, match=f"period={period} returns to the start before"):
        Linear(end=0.5, steps=4, period=period)
