"""Tests episodes as coroutines, with an engine that needs no model."""

import asyncio
import itertools

import numpy as np
import pytest

from rl4p.base.types import Finish
from rl4p.protocols.engine import Completion, Request
from rl4p.rollout.episode_loop import AdaptiveConcurrency, EpisodeLoop, Places, within


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


def climbed(concurrency, rate, measurements):
    """Returns the numbers that act while the turns per second are a function of the number."""
    numbers = []
    for _ in range(measurements):
        numbers.append(concurrency.number)
        concurrency.learn(rate(concurrency.number))
    return numbers


def test_the_number_of_episodes_doubles_while_turns_become_faster():
    concurrency = AdaptiveConcurrency(4, 200)
    assert climbed(concurrency, float, 7) == [4, 8, 16, 32, 64, 128, 200]
    assert concurrency.best == 200


@pytest.mark.parametrize(
    ("rate", "best"),
    [
        (lambda number: 7.0, 4),  # bound by the processors
        (lambda number: min(number, 40), 64),
        (lambda number: number if number <= 32 else 1.0, 32),  # the machine has no more memory
        (lambda number: 1 + number / 1000, 4),  # less than 0.5% for twice the number
    ],
    ids=["processors", "slots", "memory", "little"],
)
def test_a_larger_number_must_pay(rate, best):
    concurrency = AdaptiveConcurrency(4, 256)
    numbers = climbed(concurrency, rate, 400)
    assert concurrency.best == best
    assert numbers[100:].count(best) > 0.9 * 300  # trials become rare
    assert set(numbers) <= {4, 8, 16, 32, 64, 128, 256}


@pytest.mark.parametrize("most", [64, 256])
def test_a_number_is_given_up_when_its_machine_has_become_slower(most):
    concurrency = AdaptiveConcurrency(4, most)
    for faster, best in ((64, 64), (8, 8), (64, 64)):
        climbed(concurrency, lambda number: min(number, faster), 300)  # noqa: B023
        assert concurrency.best == best


def test_one_slow_trial_does_not_end_the_climb():
    """Programs for more episodes are compiled in the first one."""
    concurrency, seen = AdaptiveConcurrency(4, 64), set()

    def rate(number):
        first = number not in seen
        seen.add(number)
        return 0.1 if first and number > 4 else number

    assert climbed(concurrency, rate, 9) == [4, 8, 8, 16, 16, 32, 32, 64, 64]
    assert concurrency.best == 64


def test_one_fast_trial_of_a_smaller_number_does_not_move_it():
    """Noise: every second measurement of 32 is twice too large."""
    concurrency, calls = AdaptiveConcurrency(4, 64), itertools.count()
    numbers = climbed(
        concurrency, lambda number: 128 if number == 32 and next(calls) % 2 else number, 400
    )
    assert concurrency.best == 64
    assert numbers[10:].count(32) > 10
    assert numbers[10:].count(16) == 0


class Scripted:
    """A number of episodes that each measurement replaces by the next of a list."""

    def __init__(self, *numbers):
        self.numbers, self.rates = list(numbers), []

    @property
    def number(self):
        return self.numbers[0]

    def learn(self, rate):
        self.rates.append(rate)
        if len(self.numbers) > 1:
            del self.numbers[0]


def held(concurrency, episodes, turns):
    """Returns how many episodes run at each of their turns, in the order of time."""
    running, now = [], 0

    async def episode(places):
        nonlocal now
        async with places:
            now += 1
            for _ in range(turns):
                await asyncio.sleep(0)
                running.append(now)
                places.count_turn()
            now -= 1

    async def call():
        places = Places(concurrency, episodes)
        await asyncio.gather(*(episode(places) for _ in range(episodes)))
        places.end()

    asyncio.run(call())
    return running


def test_places_are_added_and_taken_away_between_windows():
    concurrency = Scripted(2, 4, 8, 2, 8)
    running = held(concurrency, 128, turns=2)
    windows = running[:32], running[32:68], running[68:108], running[124:140], running[-60:-20]
    assert [max(window) for window in windows] == [2, 4, 8, 2, 8]
    assert len(concurrency.rates) == 6
    assert min(concurrency.rates) > 0


@pytest.mark.parametrize(
    ("episodes", "turns", "measured"), [(31, 4, 1), (8, 1, 1), (5, 1, 1), (4, 1, 0), (80, 1, 2)]
)
def test_a_call_of_few_episodes_is_one_window(episodes, turns, measured):
    """Where half of the eight places would have been enough, nothing is measured."""
    concurrency = Scripted(8)
    held(concurrency, episodes, turns)
    assert len(concurrency.rates) == measured
