import pytest

from rl4p.loop.schedule import check_points, value_at


@pytest.mark.parametrize(
    ("step", "value"), [(0, 1.0), (10, 1.0), (15, 0.75), (20, 0.5), (25, 1.5), (30, 2.5), (99, 2.5)]
)
def test_values_are_linear_between_points_and_constant_outside(step, value):
    assert value_at([[10, 1.0], [20, 0.5], [30, 2.5]], step) == value


def test_one_point_is_a_constant():
    assert [value_at([[5, 0.25]], step) for step in (0, 5, 9)] == [0.25] * 3


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "must be pairs"),
        ([[0, 1, 2]], "must be pairs"),
        ([[5, 1], [5, 0]], "must rise"),
        ([[5, 1], [3, 0]], "must rise"),
        ([[-1, 1]], "must rise, from 0"),
        ([[0, 1.5]], r"p has the value 1.5, which is not in \[0, 1\]"),
        ([[0, -0.5]], "not in"),
        ([[0, float("nan")]], "not in"),
    ],
)
def test_points_that_are_no_schedule_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        check_points("p", points, 0, 1)
    check_points("p", [[0, 0.0], [3, 1.0]], 0, 1)
