"""Tests responses without a grade."""

import math

from rl4p.reward.ungradable import Ungradable, with_nan


def test_ungradable_responses_are_nan_and_are_counted(caplog):
    grades = with_nan([1.0, Ungradable("it is empty"), None, Ungradable("it is long")], "graded")
    assert [grades[0], grades[2]] == [1.0, None]
    assert math.isnan(grades[1])
    assert math.isnan(grades[3])
    assert caplog.messages == [
        "2 of 4 responses could not be graded, the first because it is empty."
    ]


def test_grades_alone_are_not_logged(caplog):
    assert with_nan([0.0, None], "graded") == [0.0, None]
    assert not caplog.messages
