import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Turn
from rl4p.configuration import compose
from rl4p.learner.kl import Fixed
from rl4p.loop.cache import SuccessCache
from rl4p.loop.checks import check_trajectories
from rl4p.loop.groups import joined
from rl4p.runs.build import build
from rl4p.runs.checkpoint import with_arrays, without_arrays

PLAIN = SimpleNamespace(kl=SimpleNamespace(active=False), advantage=None, rollout=None)


def test_a_group_without_a_right_sample_gets_the_shortest_so_far(make_group, policy):
    cache = SuccessCache().open(PLAIN)
    solved = make_group([1, 0, 1], [6, 1, 4])
    assert cache(solved) == (solved, False)
    assert cache(make_group([1, 0, 0], [5, 2, 2], first=80))[1] is False  # longer than the other
    failed = make_group([0, 0, 0], [3, 8, 7], first=90)
    group, replaced = cache(failed)
    assert replaced
    before, after = failed.trajectories, group.trajectories
    W = after.prompt_columns
    for name in ("tokens_BT", "response_mask_BT", "behaviour_logprobs_BT", "policy_version_BT"):
        np.testing.assert_array_equal(getattr(after, name)[:2], getattr(before, name)[:2])
        np.testing.assert_array_equal(getattr(after, name)[:, :W], getattr(before, name)[:, :W])
    assert after.tokens_BT[2, W : W + 4].tolist() == [67] * 4
    assert after.response_mask_BT[2].sum() == after.response_mask_BT[2, W : W + 4].sum() == 4
    assert after.positions_BT[2, W : W + 4].tolist() == before.positions_BT[2, W : W + 4].tolist()
    assert not after.behaviour_logprobs_BT[2].any()
    assert (after.policy_version_BT[2] == -1).all()
    assert (before.policy_version_BT[2, W : W + 7] == 4).all()  # the group itself is unchanged
    assert group.rewards.total_B.tolist() == [0, 0, 1]
    assert group.rewards.terms["correct"].tolist() == [0, 0, 1]
    assert group.episodes[:2] == failed.episodes[:2]
    assert group.episodes[2].response == solved.episodes[2].response
    assert (group.episodes[2].tokens, group.episodes[2].prompt) == (4, failed.prompt)
    check_trajectories(joined([group], policy.pad_id)[0])


def test_other_prompts_and_solved_groups_are_left_alone(make_group, prompts):
    cache = SuccessCache().open(PLAIN)
    cache(make_group([1, 0]))
    other = make_group([0, 0], prompt=prompts[1])
    assert cache(other) == (other, False)
    solved = make_group([0, 1], first=80)
    assert cache(solved) == (solved, False)


def test_a_solution_has_no_recorded_experts(make_group):
    cache, failed = SuccessCache().open(PLAIN), make_group([0, 0, 0])
    cache(make_group([1, 0, 0]))
    recorded_BTX = np.ones((*failed.trajectories.tokens_BT.shape, 2), np.int8)
    chosen = replace(failed.trajectories, experts_BTX=recorded_BTX)
    after = cache(replace(failed, trajectories=chosen))[0].trajectories
    W = after.prompt_columns
    assert after.experts_BTX[:2].all()
    assert after.experts_BTX[2, :W].all()
    assert not after.experts_BTX[2, W:].any()


def test_an_invalid_sample_is_replaced_by_a_valid_one(make_group):
    cache = SuccessCache().open(PLAIN)
    cache(make_group([1, 0]))
    group, replaced = cache(make_group([0, 0], valid=[True, False]))
    assert replaced
    assert group.rewards.valid_B.tolist() == [True, True]


def test_a_solution_is_not_late(make_group):
    cache = SuccessCache().open(PLAIN)
    cache(make_group([1, 0]))
    failed = make_group([0, 0], valid=[False, False])
    late_B = np.array([True, True])
    group, _ = cache(replace(failed, rewards=replace(failed.rewards, late_B=late_B)))
    assert group.rewards.late_B.tolist() == [True, False]


def test_the_prompt_that_was_right_longest_ago_leaves_first(make_group, prompts):
    cache = SuccessCache(capacity=2).open(PLAIN)
    for at in (0, 1, 0, 2):  # prompt 0 is right again
        cache(make_group([1, 0], prompt=prompts[at]))
    assert list(cache.solutions) == [prompts[0].id, prompts[2].id]


def test_a_restored_cache_replaces_alike(make_group, prompts, equal):
    cache = SuccessCache().open(PLAIN)
    cache(make_group([1, 0], [2, 3]))
    cache(make_group([0, 1], [2, 5], prompt=prompts[1]))
    arrays = {}
    state = json.loads(json.dumps(without_arrays(cache.state(), arrays)))
    restored = SuccessCache().open(PLAIN)
    restored.restore(with_arrays(state, arrays))
    for prompt in prompts[:2]:
        failed = make_group([0, 0], prompt=prompt)
        ours, theirs = cache(failed)[0], restored(failed)[0]
        equal(ours.trajectories, theirs.trajectories)
        equal(ours.rewards, theirs.rewards)
        assert ours.episodes == theirs.episodes
    empty = SuccessCache().open(PLAIN)
    empty.restore(SuccessCache().open(PLAIN).state())
    assert not empty.solutions


def test_grades_and_rollouts_that_do_not_fit_are_refused(make_group):
    group = make_group([0, 0])
    with pytest.raises(InputError, match="term=right is not a term of the reward, which has corr"):
        SuccessCache(term="right").open(PLAIN)(group)
    turns = replace(group, trajectories=replace(group.trajectories, prompt_columns=0))
    with pytest.raises(InputError, match="needs samples of one prompt and one response"):
        SuccessCache().open(PLAIN)(turns)


def test_a_total_reward_may_decide(make_group):
    group = make_group([1, 0])
    changed = replace(group, rewards=replace(group.rewards, terms={}))
    cache = SuccessCache(term=None).open(PLAIN)
    cache(changed)
    assert list(cache.solutions) == [group.prompt.id]


@pytest.mark.parametrize(
    ("kl", "needs", "sentence"),
    [
        (Fixed(beta=0.1, placement="in_reward"), (), "placement=in_reward needs them"),
        (Fixed(beta=0.1, placement="in_loss"), ("teacher_logprobs",), "compares with a teacher"),
    ],
)
def test_phases_that_read_the_sampler_are_refused(kl, needs, sentence):
    phases = SimpleNamespace(rollout=None, kl=kl, advantage=SimpleNamespace(needs=frozenset(needs)))
    with pytest.raises(InputError, match=sentence):
        SuccessCache().open(phases)


@pytest.mark.quick(1)
@pytest.mark.parametrize("collector", ["dynamic_sampling", "asynchronous"])
@pytest.mark.parametrize(
    "rollout",
    [
        (
            *("rollout=environment", "+environment@rollout.environment=gymnasium"),
            "rollout.environment.factory._target_=rl4p.rollout.environments.games.Guess",
        ),
        (
            *("rollout=environment", "+environment@rollout.environment=tool_object"),
            "rollout.environment.factory._target_=rl4p.rollout.environments.games.Calculator",
        ),
        ("rollout=agent", "rollout.agent._target_=tests.support.worlds.PlannerAndWorker"),
    ],
)
def test_episodes_are_refused_before_the_run(collector, rollout):
    words = (f"collector={collector}", "+cache@collector.cache=success_cache", "tracker=none")
    words += (*rollout, "trusted_targets=tests", "data.train_size=40", "data.held_out_size=8")
    with pytest.raises(InputError, match="episodes of many turns, in which others answer"):
        build(compose(words))


@pytest.mark.parametrize("right", [[1, 0], [0, 0]])
def test_a_group_with_turns_is_refused(make_group, right):
    """As of a rollout of a user's own that does not say that it has many turns."""
    group = make_group(right)
    turns = (Turn(text="a", tokens=1), Turn(text="b", tokens=2))
    episodes = (replace(group.episodes[0], turns=turns), *group.episodes[1:])
    cache = SuccessCache().open(PLAIN)
    with pytest.raises(InputError, match="needs samples of one prompt and one response"):
        cache(replace(group, episodes=episodes))
    assert not cache.solutions
