import json
from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.types import Finish
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.recorder import FinishedEpisode, rows_on_host
from rl4p.rollout.sampler import Decoded, answers, training_traces
from tests.support.episodes import segment


def test_responses_stand_beside_their_prompts_in_groups(policy, make_prompt, make_completions):
    end, letters = policy.end_ids[0], policy.tokenizer("abcd")["input_ids"]
    prompts = [make_prompt((5, 6, 7)), make_prompt((8,))]
    tokens = [[*letters[:3], end], [letters[0], 7, 7, 7], [end, 7, 7, 7], letters]
    completions = make_completions(tokens, (4, 1, 1, 4), version=3, end_ids=policy.end_ids)
    trajectories, episodes = answers(policy, prompts, completions, 5)
    check_trajectories(trajectories)
    pad = policy.pad_id
    np.testing.assert_array_equal(
        trajectories.tokens_BT[:, 16:],
        [[*tokens[0], pad], [letters[0], *[pad] * 4], [end, *[pad] * 4], [*letters, pad]],
    )
    np.testing.assert_array_equal(
        trajectories.tokens_BT[:, 12:16], [[pad, 5, 6, 7]] * 2 + [[pad, pad, pad, 8]] * 2
    )
    mask = np.array([[1, 1, 1, 1, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(trajectories.response_mask_BT[:, 16:], mask)
    assert not trajectories.response_mask_BT[:, :16].any()
    np.testing.assert_array_equal(trajectories.behaviour_logprobs_BT[:, 16:], -2.0 * mask)
    np.testing.assert_array_equal(trajectories.policy_version_BT[:, 16:], 4 * mask - 1)
    assert (trajectories.policy_version_BT[:, :16] == -1).all()
    np.testing.assert_array_equal(trajectories.positions_BT[1, 12:], [0, 0, 1, 2, 3, 3, 3, 3, 3])
    assert trajectories.group_ids_B.tolist() == [0, 0, 1, 1]
    finish = [Finish.STOP, Finish.LENGTH, Finish.STOP, Finish.LENGTH]
    assert trajectories.finish_B.tolist() == finish
    first, second = prompts
    assert [episode.prompt for episode in episodes] == [first, first, second, second]
    assert [episode.response for episode in episodes] == ["abc", "a", "", "abcd"]


def test_versions_may_change_within_a_response(policy, make_prompt, make_completions):
    (completion,) = make_completions([[65, 66, 67]], [3])
    completion.versions[:] = [4, 4, 5]
    trajectories, _ = answers(policy, [make_prompt((5,))], [completion], 4)
    assert trajectories.policy_version_BT[0, 15:].tolist() == [-1, 4, 4, 5, -1]


def test_episodes_are_decoded_where_they_are_read(policy, make_prompt, make_episodes):
    words = policy.tokenizer(["12+7", "abc", "19"], add_special_tokens=False)["input_ids"]
    prompts = [make_prompt(id=x) for x in "abc"]
    tokens = [[*words[0], policy.end_ids[0]], *words[1:]]
    finishes = [Finish.STOP, Finish.LENGTH, Finish.ABORT]
    engines = ["http://a", "", "http://b"]
    lazy = Decoded(policy.tokenizer, prompts, tokens, finishes, engines)
    whole = tuple(
        replace(episode, tokens=count, finish=finish, engine=engine)
        for episode, count, finish, engine in zip(
            make_episodes(("12+7", "abc", "19"), prompts), (5, 3, 2), finishes, engines, strict=True
        )
    )
    assert len(lazy) == 3
    assert (lazy[0], lazy[-1]) == (whole[0], whole[-1])
    assert tuple(lazy[1:]) == whole[1:]
    assert tuple(lazy) == whole


def test_trajectories_say_how_their_rows_are_grouped(policy, make_prompt, make_completions):
    """So that groups may share what they begin with."""
    prompts = [make_prompt((5, 6, 7)), make_prompt(tuple(range(20)))]
    made, _ = answers(policy, prompts, make_completions(np.full((6, 2), 65), [2] * 6), 2)
    assert (made.group_size, made.prompt_columns) == (3, 32)


def test_a_text_has_no_special_tokens_whichever_way_it_is_read(policy, make_prompt):
    end, letter = policy.end_ids[0], policy.tokenizer.decode([65])
    stopped = [Finish.STOP] * 2
    lazy = Decoded(policy.tokenizer, [make_prompt()] * 2, [[65, end], [end]], stopped, [""] * 2)
    assert [x.response for x in (lazy[0], lazy[1], *lazy)] == [letter, ""] * 2


def test_tokens_of_a_prompt_may_be_chosen_too(policy, make_prompt, make_completions):
    """A conversation has answers before its last question, and other texts between them."""
    prompts = [make_prompt((5, 6, 7)), make_prompt((8,))]
    rows = [[65, 66, 67]] * 4
    completions = make_completions(rows, (3, 2, 3, 3), logprob=0.0, version=-1)
    made, _ = answers(policy, prompts, completions, 4, [[(1, 2), (3, 4), (5, 9)], [(1, 4)]])
    check_trajectories(made)
    np.testing.assert_array_equal(
        made.response_mask_BT[:, 12:],
        [
            [0, 0, 1, 0, 1, 0, 1, 0],
            [0, 0, 1, 0, 1, 0, 0, 0],  # the response is one token shorter
            [0, 0, 0, 0, 1, 1, 1, 0],
            [0, 0, 0, 0, 1, 1, 1, 0],
        ],
    )
    assert not made.response_mask_BT[:, :12].any()
    assert (made.group_size, made.prompt_columns) == (2, 0)  # no prompt is shared


@pytest.mark.slow
def test_each_turn_has_what_was_read_and_chosen(policy, make_prompt):
    one = [segment([1, 2], (3,), [4, 5], (6, 7), [8]), segment([1, 9], (4,))]
    episodes = [
        FinishedEpisode(prompt=make_prompt(), segments=segments)
        for segments in (one, [segment([1, 2])])
    ]
    trajectories, _ = rows_on_host(policy, episodes, 2, 16)
    traces = training_traces(policy.mesh.shard_rows(trajectories))
    assert json.loads(json.dumps(traces)) == traces
    assert [(x["prompt_token_ids"], x["completion_token_ids"]) for x in traces[0]] == [
        ([1, 2], [3]),
        ([1, 2, 3, 4, 5], [6, 7]),
        ([1, 9], [4]),
    ]
    for turn in traces[0]:
        count = len(turn["completion_token_ids"])
        assert turn["loss_mask"] == [1] * count
        np.testing.assert_array_equal(turn["per_token_logps"], [-1.0] * count)
    assert traces[1] == []
