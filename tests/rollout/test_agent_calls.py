"""Tests the record of an agent's calls, with an engine that needs no model."""

import asyncio

import numpy as np
import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.protocols.engine import Completion
from rl4p.protocols.environment import CallRefused
from rl4p.rollout.agent_calls import CallLimits, RecordedCalls
from rl4p.rollout.episode_rows import FinishedEpisode
from rl4p.rollout.episodes import EpisodeKey

END = 99


class Echoes:
    """A loop whose completions are the last token of the context, plus 1, and an end token."""

    def __init__(self):
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        await asyncio.sleep(0)
        tokens = [request.tokens[-1] + 1, END][: request.max_tokens]
        return Completion(
            tokens=np.array(tokens, np.int32),
            logprobs=np.zeros(len(tokens), np.float32),
            versions=np.zeros(len(tokens), np.int32),
            finish=Finish.STOP if tokens[-1] == END else Finish.LENGTH,
        )


@pytest.fixture
def make(make_prompt):
    def make(**limits):
        limits = {"tokens": 40, "calls": 8, "call_tokens": 4, "positions": 100} | limits
        return RecordedCalls(
            Echoes(),
            FinishedEpisode(prompt=make_prompt(), segments=[]),
            EpisodeKey(np.zeros(2, np.uint32), 0),
            CallLimits(**limits),
            Sampling(),
            lambda tokens: " ".join(map(str, tokens)),
            (END,),
        )

    return make


def run(calls, *contexts):
    """Completes contexts at the same time; returns the tokens of the segments."""

    async def everything():
        await asyncio.gather(*(calls.complete(context, 4) for context in contexts))

    asyncio.run(everything())
    return [segment.tokens for segment in calls.episode.segments]


def test_a_context_that_begins_with_a_segment_goes_on_with_it(make):
    calls = make()
    assert run(calls, [1, 2]) == [[1, 2, 3, END]]
    assert run(calls, [1, 2, 3, END, 7]) == [[1, 2, 3, END, 7, 8, END]]
    assert run(calls, [1, 2, 3, END, 5]) == [
        [1, 2, 3, END, 7, 8, END],
        [1, 2, 3, END, 5, 6, END],
    ]
    chosen = [segment.chosen.count(True) for segment in calls.episode.segments]
    assert chosen == [4, 2]
    assert [request.drawn for request in calls.loop.requests] == [0, 4, 8]
    assert calls.used == 2 + 3 + 7


def test_two_calls_at_a_time_never_share_a_segment(make):
    calls = make()
    run(calls, [1, 2])
    segments = run(calls, [1, 2, 3, END, 7], [1, 2, 3, END, 7])
    assert segments == [[1, 2, 3, END, 7, 8, END]] * 2
    assert calls.used == 2 + 3 + 7


def test_the_text_of_a_call_is_known_when_it_comes_back(make):
    calls = make()
    calls.read("1 2", [1, 2])
    run(calls, [1, 2])
    assert calls.continued("1 23 99 and more") == ((1, 2, 3, END), " and more")
    assert calls.continued("1 2 other") == ((), "1 2 other")
    calls.answered([3, END], {"role": "assistant", "content": "three"})
    sampled = {"role": "assistant", "content": "3"}
    assert calls.as_sampled({"role": "assistant", "content": "three"}) == sampled
    other = {"role": "user", "content": "three"}
    assert calls.as_sampled(other) == other


def test_the_room_of_an_episode(make):
    calls = make(tokens=6, calls=3)
    assert calls.room([1, 2]) == 4
    run(calls, [1, 2])
    assert calls.room([1, 2, 3, END, 7]) == 3
    with pytest.raises(CallRefused, match="it has 1 of 3 calls and 2 of 6 tokens"):
        calls.room([7] * 4)
    assert calls.full
    assert make(positions=5).room([1, 2, 3]) == 2
    calls = make(calls=1)
    run(calls, [1])
    with pytest.raises(CallRefused, match="1 of 1 calls"):
        calls.room([1, 2, END])
    calls.over = True
    with pytest.raises(CallRefused, match="The episode has ended"):
        calls.room([1])
