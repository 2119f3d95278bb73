from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.preferences import Preferences

ROLLOUT = Preferences(max_response_tokens=3)


@pytest.fixture
def pairs(policy, make_prompt):
    end = policy.end_ids[0]
    return [
        replace(make_prompt((65, 66)), responses=((70, end), (71, 72, end))),
        replace(make_prompt((67,)), responses=((70, 71, 72, end), (end,))),  # the first is cut
    ]


def test_a_group_is_the_preferred_and_the_rejected_response(policy, pairs):
    trajectories, episodes = ROLLOUT(policy, None, pairs, group_size=2, key=None, version=5)
    check_trajectories(trajectories)
    end, pad = policy.end_ids[0], policy.pad_id
    np.testing.assert_array_equal(
        np.asarray(trajectories.tokens_BT)[:, 16:],
        [[70, end, pad], [71, 72, end], [70, 71, 72], [end, pad, pad]],
    )
    assert np.asarray(trajectories.response_mask_BT)[:, :16].sum() == 0
    assert np.asarray(trajectories.response_mask_BT).sum(axis=1).tolist() == [2, 3, 3, 1]
    assert trajectories.finish_B.tolist() == [Finish.STOP, Finish.STOP, Finish.LENGTH, Finish.STOP]
    assert trajectories.group_ids_B.tolist() == [0, 0, 1, 1]
    assert (np.asarray(trajectories.policy_version_BT) == -1).all()
    assert [episode.prompt for episode in episodes] == [pairs[0], pairs[0], pairs[1], pairs[1]]


def test_other_groups_and_greedy_responses_are_refused(policy, pairs):
    with pytest.raises(InputError, match="group_size is 3: set group_size=2"):
        ROLLOUT(policy, None, pairs, group_size=3, key=None, version=0)
    with pytest.raises(InputError, match=r"no policy to evaluate: set evaluation\.loss=true"):
        ROLLOUT(policy, None, pairs, group_size=1, key=None, version=0, greedy=True)
