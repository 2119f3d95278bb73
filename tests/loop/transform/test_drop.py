import numpy as np
import pytest

from rl4p.loop.filter.deviation import Deviation
from rl4p.loop.filter.length import Length
from rl4p.loop.transform.drop import Drop


def test_a_group_is_dropped_unless_each_filter_keeps_it(make_group):
    drop = Drop(filters={"differ": Deviation(), "short": Length(most=3)})
    kept = make_group([1, 0])
    assert drop(kept) is kept
    for group in (make_group([1, 1]), make_group([1, 0], lengths=[4, 4])):
        dropped = drop(group)
        assert dropped.rewards.dropped_B.tolist() == [True, True]
        assert not dropped.rewards.valid_B.any()
        assert dropped.trajectories is group.trajectories
        assert dropped.episodes is group.episodes


def test_dropped_samples_have_no_grades_and_others_keep_theirs(make_group):
    group = make_group([1, 2, 3], valid=[True, True, False])
    once = group.without(np.array([True, False, False]))
    assert once.rewards.total_B.tolist() == [0, 2, 0]
    assert once.rewards.terms["correct"].tolist() == [0, 2, 0]
    assert once.rewards.valid_B.tolist() == [False, True, False]
    assert once.rewards.dropped_B.tolist() == [True, False, False]
    twice = once.without(np.array([False, True, False]))
    assert twice.rewards.dropped_B.tolist() == [True, True, False]  # the third: a grader failed
    assert twice.rewards.total_B.dtype == group.rewards.total_B.dtype
    assert twice.rewards.valid_B.dtype == bool


def test_a_drop_without_filters_is_refused():
    with pytest.raises(ValueError, match="drop needs a filter"):
        Drop(filters={})
