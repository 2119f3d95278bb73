"""Tests what an episode accepts; tests/rollout/test_agent.py talks to the server."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.serving.agent_server import EpisodeScheduler, EpisodeState
from rl4p.engine.serving.body import validate
from rl4p.engine.serving.chat import ChatRequest
from rl4p.engine.serving.responses import HttpError
from rl4p.protocols.engine import Completion
from rl4p.protocols.environment import CallRefused

RUN = SimpleNamespace(calls=SimpleNamespace(sampling=Sampling(temperature=0.5)))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, None),
        ({"temperature": 0.5, "stop": [], "seed": None}, None),
        ({"temperature": 1.0}, "temperature must be 0.5, as the policy is trained"),
        ({"top_p": 0.9}, "top_p must be 1, as"),
        ({"presence_penalty": 0.5}, "presence_penalty must be 0, as"),
        ({"seed": 7}, "seed would change which tokens are trained"),
        ({"stop": "x"}, "stop would change which tokens are trained"),
        ({"min_tokens": 2}, "min_tokens would change"),
    ],
)
def test_tokens_are_drawn_as_they_are_trained(fields, sentence):
    request = validate(ChatRequest, {"messages": [{"role": "user", "content": "1"}]} | fields)
    named = Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
    )
    if sentence is None:
        assert EpisodeState.sampling_of(RUN, request, named) == Sampling(temperature=0.5)
        return
    with pytest.raises(HttpError, match=sentence):
        EpisodeState.sampling_of(RUN, request, named)


def test_completions_are_delivered_whole_and_refusals_as_errors():
    async def complete(context, max_tokens):
        if max_tokens > 2:
            raise CallRefused("There is no room.")
        return Completion(
            tokens=np.array([5, 6], np.int32),
            logprobs=np.array([-1, -2], np.float32),
            versions=np.array([3, 4], np.int32),
            finish=Finish.STOP,
        )

    delivered, errors = [], []

    async def submit():
        scheduler = EpisodeScheduler(SimpleNamespace(complete=complete))
        sequences = [
            TokenSequence(context=[1], key=np.zeros(2, np.uint32), max_tokens=n, end_ids=(6,))
            for n in (2, 9)
        ]
        await asyncio.gather(*scheduler.submit(sequences, delivered.extend, errors.append))
        scheduler.cancel(scheduler.submit(sequences[:1], delivered.extend, errors.append))
        await asyncio.sleep(0)

    asyncio.run(submit())
    (chunk,) = delivered
    assert (chunk.tokens, chunk.logprobs, chunk.finish) == ([5, 6], [-1.0, -2.0], Finish.STOP)
    assert (chunk.version, chunk.sequence.index) == ("4", 0)
    assert [str(error) for error in errors] == ["There is no room."]
