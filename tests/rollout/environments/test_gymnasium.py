"""Tests text environments with the interface of Gymnasium."""

import asyncio

import pytest

from rl4p.errors import InputError
from rl4p.rollout.environments.gymnasium import Gymnasium


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


def test_a_factory_that_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="must be a class or a function"):
        Gymnasium(factory=Guess())
