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


def test_two_players_read_what_their_wrappers_show_and_both_are_paid(make_prompt):
    textarena = pytest.importorskip("textarena")
    roles, moves = ("first", "second"), ("[4]", "[4]", "[0]", "[3]", "[1]", "[5]", "[2]")
    options = Gymnasium(
        factory=lambda: TextArena("TicTacToe-v0", roles), roles=roles, sequential_resets=True
    )
    read: dict[str, str] = {}

    async def play():
        opened = options.open(make_prompt(), 7, "e1")
        read[opened.role] = read.get(opened.role, "") + (await opened.reset()).removeprefix("\n")
        for move in moves:
            result = await opened.step({"content": move})
            if result.done:
                return result
            read[opened.role] = read.get(opened.role, "") + result.state
        return None

    async def theirs():
        game = textarena.make("TicTacToe-v0")
        game.reset(num_players=2, seed=7)
        shown = {}
        for move in moves:
            player, text = game.get_observation()
            shown[roles[player]] = text
            if game.step(move)[0]:
                return shown, game.close()[0]
        return shown, None

    result = asyncio.run(play())
    shown, rewards = asyncio.run(theirs())
    assert read == shown
    assert result is not None
    assert rewards is not None
    assert result.rewards == {role: rewards[player] for player, role in enumerate(roles)}
    assert sorted(result.rewards.values()) == [-1.0, 1.0]
