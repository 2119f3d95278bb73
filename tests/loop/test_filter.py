"""Tests which groups the filters keep."""

from dataclasses import replace

import pytest

from rl4p.loop.filter import AnyOf, AnySuccess, Deviation, Diversity, LeastReward, Length


@pytest.mark.parametrize(
    ("keeps", "rewards", "options", "kept"),
    [
        (Deviation(), [0, 1], {}, True),
        (Deviation(), [0.9, 0.9, 0.9], {}, False),
        (Deviation(), [0.1, 0.1, 0.1], {}, False),  # their deviation is a rounding error
        (Deviation(), [0, 1], {"valid": [True, False]}, False),
        (Deviation(), [1], {}, False),
        (Deviation(above=0.5), [0, 1], {}, False),
        (Deviation(above=0.49), [0, 1], {}, True),
        (AnySuccess(), [0, 1], {}, True),
        (AnySuccess(), [0, 0.9], {}, False),
        (AnySuccess(term=None), [0, 1], {"valid": [True, False]}, False),
        (LeastReward(least=0.5), [0, 1], {}, True),
        (LeastReward(least=0.6), [0, 1], {}, False),
        (LeastReward(least=0.6), [0, 1], {"valid": [False, True]}, True),
        (LeastReward(least=-1), [0, 1], {"valid": [False, False]}, False),
        (Length(least=3), [0, 0], {"lengths": [2, 4]}, True),
        (Length(least=4), [0, 0], {"lengths": [2, 4]}, False),
        (Length(most=3), [0, 0], {"lengths": [2, 4]}, True),
        (Length(most=2), [0, 0], {"lengths": [2, 4]}, False),
        (AnyOf(filters={"a": Length(least=9), "b": AnySuccess()}), [0, 1], {}, True),
        (AnyOf(filters={"a": AnySuccess(), "b": Length(least=9)}), [0, 1], {}, True),
        (AnyOf(filters={"a": Length(least=9), "b": AnySuccess()}), [0, 0], {}, False),
    ],
)
def test_a_group_is_kept_or_rejected(make_group, keeps, rewards, options, kept):
    assert keeps(make_group(rewards, **options)) is kept


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "a length needs a limit"), ({"least": 5, "most": 4}, "least=5 is more than most=4")],
)
def test_limits_that_keep_everything_or_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Length(**options)


def test_equal_texts_count_once(make_group):
    group = make_group([0, 0, 0, 0])
    assert Diversity(least=1.0)(group)
    first, second = group.episodes[:2]
    spaced = replace(first, response=f" {first.response}\n")
    same = replace(group, episodes=(first, second, spaced, second))
    assert Diversity(least=0.5)(same)
    assert not Diversity(least=0.6)(same)


def test_one_filter_needs_no_other():
    with pytest.raises(ValueError, match="at least two filters"):
        AnyOf(filters={"a": AnySuccess()})
