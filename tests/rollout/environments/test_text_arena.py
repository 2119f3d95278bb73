"""Tests the games of textarena, where it is installed."""

import asyncio

import pytest

import rl4p.rollout.environments.text_arena
from rl4p.base.errors import InputError
from rl4p.rollout.environments.gymnasium import Gymnasium
from rl4p.rollout.environments.text_arena import TextArena


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(rl4p.rollout.environments.text_arena, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="textarena is not installed: run pip install textarena"):
        TextArena("Minesweeper-v0")


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("Minesweeper-v0", "[1 1]"),
        ("2048-v0", "[up]"),
        ("Bandit-v0", "[red]"),
        ("FrozenLake-v0-train", "[down]"),  # its wrapper shows the newest board alone
        ("TowerOfHanoi-v0", "[A B]"),
    ],
)
def test_the_policy_reads_what_the_wrappers_show(make_prompt, name, action):
    textarena = pytest.importorskip("textarena")
    options = Gymnasium(factory=lambda: TextArena(name), sequential_resets=True)

    async def play():
        opened = options.open(make_prompt(), 7, "e1")
        texts = [await opened.reset()]
        texts += [(await opened.step({"content": action})).state for _ in range(2)]
        return texts

    first, *later = asyncio.run(play())
    game = textarena.make(name)
    game.reset(num_players=1, seed=7)
    shown = game.get_observation()[1]
    assert first == f"\n{shown}"
    for text in later:
        game.step(action)
        _, new = game.get_observation()
        assert text == new.removeprefix(shown)
        shown = new
