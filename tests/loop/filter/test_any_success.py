import pytest

from rl4p.loop.filter.any_success import AnySuccess


@pytest.mark.parametrize(
    ("keeps", "rewards", "options", "kept"),
    [
        (AnySuccess(), [0, 1], {}, True),
        (AnySuccess(), [0, 0.9], {}, False),
        (AnySuccess(term=None), [0, 1], {"valid": [True, False]}, False),
    ],
)
def test_a_group_is_kept_or_rejected(make_group, keeps, rewards, options, kept):
    assert keeps(make_group(rewards, **options)) is kept
