import pytest

from rl4p.loop.filter.least_reward import LeastReward


@pytest.mark.parametrize(
    ("keeps", "rewards", "options", "kept"),
    [
        (LeastReward(least=0.5), [0, 1], {}, True),
        (LeastReward(least=0.6), [0, 1], {}, False),
        (LeastReward(least=0.6), [0, 1], {"valid": [False, True]}, True),
        (LeastReward(least=-1), [0, 1], {"valid": [False, False]}, False),
    ],
)
def test_a_group_is_kept_or_rejected(make_group, keeps, rewards, options, kept):
    assert keeps(make_group(rewards, **options)) is kept
