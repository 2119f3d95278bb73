"""Tests games that draw from the global generators of Python and NumPy while they are played."""

import asyncio
import random

import numpy as np
import pytest

from rl4p.rollout.environments.generators import warn_once
from rl4p.rollout.environments.gymnasium import Gymnasium
from rl4p.rollout.environments.tool_object import ToolObject


class Draws:
    """A game that draws at `times` from a global generator: of `library`, seeded in its reset."""

    def __init__(self, times, library, seeded=True):
        self.times, self.library, self.seeded, self.drawn = times, library, seeded, []
        self.draw("making")

    def draw(self, time):
        if time in self.times:
            source = random if self.library is random else np.random
            self.drawn.append(source.random())

    def reset(self, seed=None):
        if self.seeded:
            self.library.seed(seed) if self.library is random else np.random.seed(seed)  # noqa: NPY002
        self.draw("reset")
        return f"{self.drawn}", {}

    def step(self, action):
        self.draw("first step" if not self.drawn or "every step" not in self.times else "")
        self.draw("every step")
        if action == "fail":
            raise ValueError("failed")
        return f"{self.drawn}", 0.0, False, False, {}


MOVES, SEEDS = ("on",) * 3, (7, 8, 7, 7, 9)
GAMES = [
    (("making",), random, False),
    (("reset",), random, True),
    (("every step",), random, True),
    (("first step",), random, True),
    (("reset", "every step"), random, True),
    (("reset", "every step"), np, True),
    (("every step",), np, False),
    (("making", "reset", "every step"), random, False),
]


async def played(options, prompt, *moves, seed=7):
    """Returns what an episode reads, which others interrupt before each move."""
    opened = options.open(prompt, seed, "e1")
    read = [await opened.reset()]
    for move in moves:
        await asyncio.sleep(0)
        read.append((await opened.step({"role": "assistant", "content": move})).state)
    return read


def play(options, prompt, *moves):
    return asyncio.run(played(options, prompt, *moves))


@pytest.mark.parametrize("game", GAMES)
def test_samples_of_a_prompt_that_move_alike_meet_one_world(make_prompt, game):
    options = Gymnasium(factory=lambda: Draws(*game), sequential_resets=True)

    async def group():
        prompt = make_prompt()
        return await asyncio.gather(*(played(options, prompt, *MOVES, seed=x) for x in SEEDS))

    alone, before = play(options, make_prompt(), *MOVES), random.getstate()
    first, other, *rest, another = asyncio.run(group())
    assert rest == [first, first] == [alone, alone]
    assert len({str(alone), str(other), str(another)}) == 3
    assert random.getstate() == before  # the process draws on as if nobody had played


def test_a_step_that_fails_leaves_the_generators_as_they_were(make_prompt):
    options = Gymnasium(factory=lambda: Draws(("every step",), random), sequential_resets=True)
    before = random.getstate()
    with pytest.raises(ValueError, match="failed"):
        play(options, make_prompt(), "fail")
    assert random.getstate() == before


@pytest.mark.parametrize("game", GAMES[2:6])
def test_a_step_that_draws_warns_without_the_option(make_prompt, caplog, game):
    warn_once.cache_clear()
    play(Gymnasium(factory=lambda: Draws(*game)), make_prompt(), "on", "on")
    (message,) = caplog.messages
    assert message.startswith("Draws draws from a global generator of Python or NumPy")
    assert message.endswith("set rollout.environment.sequential_resets=true.")


class World:
    """Tools of a world that its reset draws."""

    def __init__(self, draw, read):
        self.draw, self.read = draw, read

    def reset(self, answer):
        self.number = self.draw(answer)
        return str(self.number)

    def look(self) -> str:
        """Returns a number that is not the world's."""
        return str(self.read())


@pytest.mark.parametrize(
    ("draw", "warns"),
    [
        (lambda _: random.randint(0, 9), True),
        (lambda _: np.random.randint(9), True),  # noqa: NPY002
        (lambda answer: random.seed(answer), True),
        (lambda answer: random.Random(answer).randint(0, 9), False),
        (lambda answer: np.random.default_rng(int(answer)).integers(9), False),
        (lambda answer: answer, False),
    ],
    ids=["random", "numpy", "seed", "own", "own of numpy", "row"],
)
def test_a_reset_of_tools_that_draws_warns(make_prompt, caplog, draw, warns):
    warn_once.cache_clear()
    opened = ToolObject(factory=lambda: World(draw, random.random)).open(make_prompt(), 7, "e1")
    asyncio.run(opened.reset())
    assert len(caplog.messages) == warns
    if warns:
        assert caplog.messages[0].endswith("with a seed from the row.")
