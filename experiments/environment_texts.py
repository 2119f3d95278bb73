"""Compares what a policy reads in games, and its rewards, with the loops of their packages.

    pip install gem-llm textarena
    python experiments/environment_texts.py [PART OF A NAME ...]

A line has a game, the number of texts that were compared, whether the game has ended, the last
reward, the number of moves whose text or reward differs, and whether four episodes with the same
moves, side by side, were the same as one alone. Countdown pays with a text after an action that it
cannot read, which is a reward of 0.
"""

import asyncio
import copy
import random
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rl4p.base.types import Prompt
from rl4p.rollout.environments.gymnasium import Gymnasium
from rl4p.rollout.environments.text_arena import TextArena

TURNS, SEED = 8, 11
# Games for several players that begin with one, too; the second loops when its only one has lost.
SEVERAL = ("PublicGoodsGame", "MarketEntryGame")
Moves = list[tuple[str, float]]  # the text and the reward of the start and of each move
PROMPT = Prompt(id="p", question="q", answer="", task="t", tokens=(1,))
# Moves of several games, of which each move of textarena's is chosen; all are wrong in the others.
ACTIONS = "up,down,left,right,1 1,0 0,2 0,1 5,4 1,A B,A C,B C,red,blue,7,15,0,hit,stand,continue"
ACTIONS += ",1 2 3 4,1 1 1,1 1 9,2 3 +"
WORDS = [f"[{words}]" for words in ACTIONS.split(",")]


async def played(options: Any, moves: Sequence[str]) -> tuple[Moves, bool]:
    """Returns what a policy reads and gets which makes some moves, and whether the game ends."""
    episode = options.open(PROMPT, SEED, "e")
    try:
        first = await episode.reset()  # tools begin without a text
        read, done = [(first.removeprefix("\n"), 0.0)] if first else [], False
        for move in moves:
            await asyncio.sleep(0)
            result = await episode.step({"role": "assistant", "content": move})
            read.append((result.messages[0]["content"], result.reward))
            done = result.done
            if done:
                break
        return read, done
    finally:
        await episode.close()


def of_gem(name: str, moves: Sequence[str]) -> Moves:
    """Returns what GEM's observation wrapper shows after each move, without what it has shown."""
    wrappers: Any = import_module("gem.wrappers.observation_wrapper")
    game = import_module("gem").make(name)
    wrapped = wrappers.ObservationWrapper(game, include_action=False, include_chat_template=False)
    text, info = wrapped.reset(seed=SEED)
    texts = [(text, 0.0)]
    for move in moves:
        before = "".join(wrappers.maybe_add_new_line(shown) for shown, _ in wrapped.obs_queue)
        text, reward, terminated, truncated, info = wrapped.step(move)
        prefix = info.get("prefix", "")
        texts.append((prefix + text.removeprefix(prefix).removeprefix(before), float(reward)))
        if terminated or truncated:
            break
    return texts


def of_arena(name: str, moves: Sequence[str]) -> Moves:
    """Returns what the wrappers of a game of textarena show, without what they have shown."""
    game: Any = import_module("textarena").make(name)
    game.reset(num_players=1, seed=SEED)
    shown = game.get_observation()[1]
    texts = [(shown, 0.0)]
    for move in moves:
        done, _ = game.step(move)
        text = game.get_observation()[1]
        reward = game.close()[0][0] if done else 0.0
        texts.append((text.removeprefix(shown), 0.0 if isinstance(reward, str) else float(reward)))
        shown = text
        if done:
            break
    return texts


def arena_moves(name: str) -> list[str]:
    """Returns right moves, if any are known, and then wrong ones, which end the game."""
    game: Any = import_module("textarena").make(name)
    game.reset(num_players=1, seed=SEED)
    moves: list[str] = []

    def cost(word: str) -> tuple[bool, int, int]:
        before, trial = random.getstate(), copy.deepcopy(game)
        done, _ = trial.step(word)
        random.setstate(before)
        return done, trial.state.error_count, moves.count(word)

    for _ in range(TURNS):
        moves.append(min(WORDS, key=cost))
        if game.step(moves[-1])[0]:
            break
    return [*moves, *["no move"] * TURNS]


def gem_moves(name: str) -> list[str]:
    game = import_module("gem").make(name)
    game.reset(seed=SEED + 1)
    try:
        return [game.sample_random_action() for _ in range(TURNS)]
    except NotImplementedError:  # Sokoban
        return [rf"\boxed{{{move}}}" for move in ("up", "down", "left", "right")]


def compare(name: str, factory: Callable[[], Any], moves: Sequence[str], theirs: Any) -> bool:
    """Prints the line of a game; returns whether a text or a reward differs, or an episode."""
    options = Gymnasium(factory=factory, sequential_resets=True)

    async def together() -> list[tuple[Moves, bool]]:
        return await asyncio.gather(*(played(options, moves) for _ in range(4)))

    def plain(read: Moves) -> Moves:
        return [(text.rstrip("\n"), reward) for text, reward in read]

    alone, done = asyncio.run(played(options, moves))
    pairs = zip(plain(alone), plain(theirs(name, moves)), strict=True)
    differ = sum(a != b for a, b in pairs)
    same = all(plain(each) == plain(alone) for each, _ in asyncio.run(together()))
    end = "yes" if done else "no"
    words = "same" if same else "DIFFERENT"
    print(f"{name:34} {len(alone):5} {end:>5} {alone[-1][1]:6.2f} {differ:6}  {words}", flush=True)
    return bool(differ) or not same


def main() -> int:
    wrong, skipped = 0, []
    print(f"{'game':34} texts ended reward differ  four samples")
    games: list[tuple[str, Callable[[], Any], Callable[[], Sequence[str]], Any]] = []
    if find_spec("gem"):
        registry = import_module("gem.envs.registration").ENV_REGISTRY
        for name in (x for x in registry if x.startswith("game:")):
            make = lambda name=name: import_module("gem").make(name)  # noqa: E731
            games.append((name, make, lambda name=name: gem_moves(name), of_gem))
    if find_spec("textarena"):
        registry = import_module("textarena.envs.registration").ENV_REGISTRY
        for name in registry:
            if name.endswith(("-v0", "-v0-train")) and not name.startswith(SEVERAL):
                make = lambda name=name: TextArena(name)  # noqa: E731
                games.append((name, make, lambda name=name: arena_moves(name), of_arena))
    words = sys.argv[1:]
    games = [game for game in games if not words or any(word in game[0] for word in words)]
    for name, make, moves, theirs in games:
        random.seed(SEED)
        try:
            theirs(name, ())
        except Exception as error:  # noqa: BLE001 - of a game for several players, or without data
            skipped.append(f"{name} ({type(error).__name__})")
            continue
        wrong += compare(name, make, moves(), theirs)
    print(f"{len(games) - len(skipped)} games, {wrong} differ; {len(skipped)} for several players")
    print("or without their data: " + ", ".join(skipped))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
