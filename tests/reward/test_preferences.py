from types import SimpleNamespace

import numpy as np

from rl4p.reward.preferences import Preferences


def test_the_first_response_of_each_group_is_preferred():
    trajectories = SimpleNamespace(group_ids_B=np.array([0, 0, 3, 3, 1, 1], np.int32))
    rewards = Preferences()(trajectories, [None] * 6)
    assert rewards.total_B.tolist() == [1, 0, 1, 0, 1, 0]
    assert rewards.total_B.dtype == np.float32
    assert rewards.valid_B.all()
