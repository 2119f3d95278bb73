"""Tests episodes as rows of trajectories."""

import numpy as np
import pytest

from rl4p.base.types import Finish, Turn
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.episode_rows import FinishedEpisode, divided, rows_on_host
from rl4p.rollout.exact_conversation import conversation_of
from tests.support.episodes import completion, segment


def test_the_first_context_and_the_rest():
    context, rest = divided([segment([1, 2], (3,), [4, 5], (6, 7), [8])])
    assert context["tokens"].tolist() == [1, 2]
    assert rest["tokens"].tolist() == [3, 4, 5, 6, 7]  # 8 was read, and nothing chosen after it
    assert rest["chosen"].tolist() == [True, False, False, True, True]
    assert rest["positions"].tolist() == [2, 3, 4, 5, 6]


def test_positions_and_ids_of_segments():
    _, rest = divided([segment([1, 2], (3,)), segment([1, 9], (4,))])
    assert rest["tokens"].tolist() == [3, 1, 9, 4]
    assert rest["positions"].tolist() == [2, 0, 1, 2]
    assert rest["segments"].tolist() == [1, 2, 2, 2]


def test_an_episode_without_a_turn_is_its_context():
    context, rest = divided([segment([1, 2])])
    assert context["tokens"].tolist() == [1, 2]
    assert not rest["tokens"].size


@pytest.mark.parametrize("same", [True, False])
def test_rows(policy, make_prompt, same):
    episodes = []
    for number in range(4):
        prompt = make_prompt()
        messages = prompt.prompt_messages()
        if not same:
            messages.append({"role": "user", "content": str(number)})
        conversation = conversation_of(policy, prompt, None, messages)
        conversation.respond(completion(5, 6, policy.end_ids[0]))
        turns = [Turn(text="t", tokens=3, reward=1.0)]
        episodes.append(
            FinishedEpisode(
                prompt=prompt, segments=conversation.segments, turns=turns, finish=Finish.STOP
            )
        )
    trajectories, words = rows_on_host(policy, episodes, 2, 8)
    check_trajectories(trajectories)
    assert trajectories.prompt_columns == (16 if same else 0)
    assert trajectories.tokens_BT.shape == (4, 24)
    assert np.asarray(trajectories.response_mask_BT).sum(axis=1).tolist() == [3] * 4
    assert np.asarray(trajectories.group_ids_B).tolist() == [0, 0, 1, 1]
    assert [(each.tokens, each.finish, each.failure) for each in words] == [
        (3, Finish.STOP, None)
    ] * 4
