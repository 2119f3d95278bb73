from dataclasses import replace

import numpy as np
import pytest

from rl4p.loop.transform.relabel import Relabel


def with_terms(group, **terms):
    arrays = {name: np.float32(values) for name, values in terms.items()}
    return replace(group, rewards=replace(group.rewards, terms=arrays))


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, [1, -1, 0, 0.75]),
        ({"term": None}, [-1, 1, 0, -1]),
        ({"right": 0.5, "wrong": 0.0}, [0.5, 0, 0, 0.75]),
    ],
)
def test_right_and_wrong_samples_get_their_rewards(make_group, options, total):
    """The third is invalid, and the term does not apply to the fourth."""
    group = make_group([0.5, 1.5, 9, 0.75], valid=[True, True, False, True])
    group = with_terms(group, correct=[1, 0, 0, np.nan])
    tokens_BT = np.ones(group.trajectories.tokens_BT.shape, np.float32)
    group = replace(group, rewards=replace(group.rewards, tokens_BT=tokens_BT))
    relabelled = Relabel(**options)(group)
    assert relabelled.rewards.total_B.tolist() == total
    assert relabelled.rewards.total_B.dtype == np.float32
    assert relabelled.rewards.tokens_BT is None
    assert relabelled.rewards.terms is group.rewards.terms
    assert group.rewards.total_B.tolist() == [0.5, 1.5, 0, 0.75]  # a pure function


def test_equal_rewards_are_refused():
    with pytest.raises(ValueError, match="both 1: all rewards would be equal"):
        Relabel(wrong=1.0)
