"""Tests episodes as coroutines, with an engine that needs no model."""

import asyncio

import numpy as np
import pytest

from rl4p.base.types import Finish
from rl4p.protocols.engine import Completion, Request
from rl4p.rollout.episode_loop import EpisodeLoop, within


class Doubles:
    """An engine whose completions are the first token of the context, doubled."""

    def __init__(self, error=None):
        self.error, self.calls = error, []

    def complete(self, requests, *, greedy=False):
        self.calls.append(len(requests))
        if self.error is not None:
            raise self.error
        return [
            Completion(
                tokens=np.array([2 * request.tokens[0]], np.int32),
                logprobs=np.zeros(1, np.float32),
                versions=np.zeros(1, np.int32),
                finish=Finish.STOP,
            )
            for request in requests
        ]


def request(token):
    return Request(tokens=(token,), keys_N=np.zeros((1, 2), np.uint32), max_tokens=1)


async def episode(loop, token, turns):
    for _ in range(turns):
        token = (await loop.complete(request(token))).tokens[0].item()
        await asyncio.sleep(0)
    return token


def test_each_episode_gets_its_own_completions():
    loop, engine = EpisodeLoop(8, 100), Doubles()
    episodes = [episode(loop, token, turns) for token, turns in ((1, 3), (5, 1), (7, 0), (2, 2))]
    assert loop.run(engine, episodes, greedy=False) == [8, 10, 7, 8]
    assert sum(engine.calls) == 6


def test_an_error_of_the_engine_ends_all_episodes():
    loop = EpisodeLoop(8, 100)
    with pytest.raises(RuntimeError, match="the device is gone"):
        loop.run(
            Doubles(RuntimeError("the device is gone")),
            [episode(loop, token, 2) for token in range(4)],
            greedy=False,
        )


def test_an_error_of_an_episode_is_raised():
    loop = EpisodeLoop(8, 100)

    async def fails():
        await loop.complete(request(1))
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        loop.run(Doubles(), [fails(), episode(loop, 1, 1)], greedy=False)


def test_a_deadline():
    async def slow():
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError, match=r"no answer within 0.01 s"):
        asyncio.run(within(0.01, slow))
    assert asyncio.run(within(None, lambda: asyncio.sleep(0, "done"))) == "done"
