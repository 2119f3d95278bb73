import pytest

from rl4p.loop.filter.length import Length


@pytest.mark.parametrize(
    ("keeps", "rewards", "options", "kept"),
    [
        (Length(least=3), [0, 0], {"lengths": [2, 4]}, True),
        (Length(least=4), [0, 0], {"lengths": [2, 4]}, False),
        (Length(most=3), [0, 0], {"lengths": [2, 4]}, True),
        (Length(most=2), [0, 0], {"lengths": [2, 4]}, False),
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
