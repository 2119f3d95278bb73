import pytest

from rl4p.loop.filter.any_of import AnyOf
from rl4p.loop.filter.any_success import AnySuccess
from rl4p.loop.filter.length import Length


@pytest.mark.parametrize(
    ("keeps", "rewards", "options", "kept"),
    [
        (AnyOf(filters={"a": Length(least=9), "b": AnySuccess()}), [0, 1], {}, True),
        (AnyOf(filters={"a": AnySuccess(), "b": Length(least=9)}), [0, 1], {}, True),
        (AnyOf(filters={"a": Length(least=9), "b": AnySuccess()}), [0, 0], {}, False),
    ],
)
def test_a_group_is_kept_or_rejected(make_group, keeps, rewards, options, kept):
    assert keeps(make_group(rewards, **options)) is kept


def test_one_filter_needs_no_other():
    with pytest.raises(ValueError, match="at least two filters"):
        AnyOf(filters={"a": AnySuccess()})
