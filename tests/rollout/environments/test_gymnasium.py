"""Tests text environments with the interface of Gymnasium."""

import asyncio
import random
import time

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.environments.gymnasium import Gymnasium, warn_once


class Guess:
    """A number to guess, which depends on the seed."""

    def reset(self, *, seed=None):
        self.number = seed % 10
        return "Guess a digit.", {}

    def step(self, action):
        if action == self.number:
            return "Right.", 1.0, True, False, {}
        return ("Higher." if action < self.number else "Lower."), 0.0, False, False, {}

    def close(self):
        self.number = None


def episode(options, prompt, *texts):
    async def run():
        opened = options.open(prompt, 17, "e1")
        first = await opened.reset()
        results = [await opened.step({"role": "assistant", "content": text}) for text in texts]
        await opened.close()
        return first, results, opened

    return asyncio.run(run())


def test_an_episode(make_prompt):
    options = Gymnasium(factory=Guess, discrete=True)
    first, results, opened = episode(options, make_prompt(), "5", "8", " 7 ")
    assert first == "\nGuess a digit."
    assert [result.messages[0]["content"] for result in results] == ["Higher.", "Lower.", "Right."]
    assert [(result.reward, result.done) for result in results] == [(0, 0), (0, 0), (1, 1)]
    assert results[0].state == "Higher."
    assert opened.environment.number is None


def test_a_message_without_an_action_costs_a_turn(make_prompt):
    options = Gymnasium(factory=Guess, discrete=True)
    _, (result, right), _ = episode(options, make_prompt(), "seven", "7")
    assert result.messages[0]["content"] == "Your message has no action."
    assert result.metrics == {"missing_actions": 1.0}
    assert (result.done, right.done) == (False, True)


def test_an_observation_is_a_text(make_prompt):
    class Numbers(Guess):
        def reset(self, *, seed=None):
            return 3, {}

    with pytest.raises(TypeError, match="an observation is a text, not int"):
        episode(Gymnasium(factory=Numbers), make_prompt())


class Global:
    """Draws its world from the global generator, as GEM's environments do, and has no `close`."""

    def __init__(self):
        self.number = random.random()

    def reset(self, *, seed=None):
        random.seed(seed)
        time.sleep(0.001)  # another thread may draw meanwhile
        self.number = random.random()
        return str(self.number), {}


def worlds(options, prompt):
    """Returns the first observations of eight concurrent episodes with one seed."""

    async def run():
        opened = [options.open(prompt, 17, "e1") for _ in range(8)]
        firsts = await asyncio.gather(*(each.reset() for each in opened))
        await asyncio.gather(*(each.close() for each in opened))
        return firsts

    return asyncio.run(run())


def test_sequential_resets_meet_one_world_by_the_global_generator(make_prompt):
    expected = f"\n{random.Random(17).random()}"
    for _ in range(4):
        firsts = worlds(Gymnasium(factory=Global, sequential_resets=True), make_prompt())
        assert firsts == [expected] * 8


def test_a_reset_that_uses_the_global_generator_warns_once(make_prompt, caplog):
    warn_once.cache_clear()
    worlds(Gymnasium(factory=Guess), make_prompt())
    assert not caplog.messages
    worlds(Gymnasium(factory=Global), make_prompt())
    assert [message.partition(":")[2] for message in caplog.messages] == [
        " set rollout.environment.sequential_resets=true."
    ]


def test_a_factory_that_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="must be a class or a function"):
        Gymnasium(factory=Guess())
