from dataclasses import replace

import numpy as np

from rl4p.loop.checks import check_rewards, check_trajectories
from rl4p.loop.transform.truncate import Truncate


def test_the_first_tokens_of_each_response_are_trained(make_group):
    group = make_group([1, 0, 1], lengths=[2, 5, 3])
    before = group.trajectories
    tokens_BT = np.where(before.response_mask_BT, np.float32(0.25), np.float32(0))
    group = replace(group, rewards=replace(group.rewards, tokens_BT=tokens_BT))
    cut = Truncate(most=3)(group)
    after = cut.trajectories
    assert after.response_mask_BT.sum(axis=1).tolist() == [2, 3, 3]
    first = before.prompt_columns
    assert after.response_mask_BT[:, first : first + 2].all()
    prompt = before.segment_ids_BT[:, :first].sum(axis=1)
    assert (after.segment_ids_BT.sum(axis=1) - prompt).tolist() == [2, 3, 3]
    kept_BT = after.response_mask_BT
    np.testing.assert_array_equal(
        after.behaviour_logprobs_BT, np.where(kept_BT, before.behaviour_logprobs_BT, 0)
    )
    assert (after.policy_version_BT[~kept_BT] == -1).all()
    assert after.policy_version_BT[kept_BT].tolist() == [4] * 8
    assert cut.rewards.tokens_BT.sum(axis=1).tolist() == [0.5, 0.75, 0.75]
    assert cut.rewards.total_B is group.rewards.total_B
    assert after.tokens_BT is before.tokens_BT
    check_trajectories(after)
    check_rewards(cut.rewards, after)
    assert before.response_mask_BT.sum(axis=1).tolist() == [2, 5, 3]  # a pure function


def test_gaps_in_a_response_do_not_count(make_group):
    """The tokens of an environment between two turns stay, as far as later ones read them."""
    group = make_group([1], lengths=[5])
    mask_BT = group.trajectories.response_mask_BT.copy()
    first = group.trajectories.prompt_columns
    mask_BT[0, first + 1] = False
    group = replace(group, trajectories=replace(group.trajectories, response_mask_BT=mask_BT))
    cut = Truncate(most=2)(group).trajectories
    assert cut.response_mask_BT[0, first : first + 5].tolist() == [True, False, True, False, False]
    assert (cut.segment_ids_BT[0, first : first + 5] > 0).tolist() == [True] * 3 + [False] * 2


def test_short_responses_stay_the_same_object(make_group):
    group = make_group([1, 0], lengths=[2, 3])
    assert Truncate(most=3)(group) is group
