"""Tests text environments with the interface of Gymnasium."""

import asyncio
import random
import time

import pytest

from rl4p.base.errors import InputError
from rl4p.rollout.environments.generators import warn_once
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


class Doors:
    """The open door stands in the info alone; `given` are the infos of reset and steps."""

    def __init__(self, *infos, first="Go.", later="You went on."):
        self.infos, self.first, self.later = list(infos), first, later

    def reset(self, seed=None):
        return self.first, self.infos.pop(0)

    def step(self, action):
        return self.later, 0.0, False, False, self.infos.pop(0)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"suffix": "Door 2."}, "Go.\nDoor 2."),
        ({"prefix": "Room 1: "}, "Room 1: Go."),
        ({"prefix": "Room 1: ", "suffix": "Door 2.\n"}, "Room 1: Go.\nDoor 2.\n"),
        ({"suffix": ""}, "Go."),
        ({"suffix": 3, "prefix": None}, "Go."),  # of an environment that means something else
        ({"moves": ["up", "left"]}, 'Go.\nmoves: ["up", "left"]'),
        ({"score": 3, "moves": "up"}, "Go.\nmoves: up\nscore: 3"),
        ({"suffix": "Door 2.", "moves": None}, "Go.\nDoor 2.\nmoves: null"),
        ({"other": "not asked for"}, "Go."),
    ],
)
def test_the_policy_reads_the_fields_of_info_that_show_the_world(make_prompt, info, expected):
    options = Gymnasium(
        factory=lambda: Doors(info, info, info, later="Go."), info_fields=("moves", "score")
    )

    async def run():
        opened = options.open(make_prompt(), 17, "e1")
        opened.known |= {"moves", "score"}
        first = await opened.reset()
        return first, await opened.step({"role": "assistant", "content": "on"})

    first, result = asyncio.run(run())
    assert first == f"\n{expected}"
    assert result.messages[0]["content"] == result.state == expected


def test_a_line_break_of_the_observation_is_not_doubled(make_prompt):
    options = Gymnasium(factory=lambda: Doors({"suffix": "a"}, first="Go.\n"))
    assert episode(options, make_prompt())[0] == "\nGo.\na"
    options = Gymnasium(factory=lambda: Doors({"suffix": "a"}, first=""))
    assert episode(options, make_prompt())[0] == "\na"


def test_turns_in_other_worlds_are_in_other_states(make_prompt):
    options = Gymnasium(factory=lambda: Doors(*({"suffix": f"Door {n}."} for n in range(3))))
    _, (one, two), _ = episode(options, make_prompt(), "a", "b")
    assert one.state != two.state


def test_a_field_that_the_info_never_has_is_named(make_prompt):
    late = Gymnasium(factory=lambda: Doors({}, {"moves": "up"}), info_fields=("moves",))
    assert episode(late, make_prompt(), "a")[1][0].state == "You went on.\nmoves: up"
    wrong = Gymnasium(factory=lambda: Doors({"score": 1}, {}), info_fields=("moves",))
    with pytest.raises(InputError, match="info_fields=moves: the info of Doors has score"):
        episode(wrong, make_prompt(), "a")


def test_a_factory_that_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="must be a class or a function"):
        Gymnasium(factory=Guess())
