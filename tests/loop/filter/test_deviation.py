import pytest

from rl4p.loop.filter.deviation import Deviation


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
    ],
)
def test_a_group_is_kept_or_rejected(make_group, keeps, rewards, options, kept):
    assert keeps(make_group(rewards, **options)) is kept
