"""Games of the library textarena, in the form that `environment=gymnasium` takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rl4p.base.errors import InputError


@dataclass(eq=False)
class TextArena:
    r"""A game of the library textarena (2504.11442), for one player or for one of each role.

    The policy reads what the wrappers of the game show. Most show the whole history each time; what
    the policy has read stands in its conversation, so that it reads the rest. Many games draw from
    Python's global generator, so that `environment=textarena` makes one call at a time. The rewards
    are those of the end; a game counts its turns and ends itself.

        pip install textarena
        python -m rl4p.train rollout=environment +environment@rollout.environment=textarena \
            rollout.environment.factory.id=Minesweeper-v0 data=environment ...

    Attributes:
      id: the name of the game.
      roles: the names of player 0, player 1 and so on; empty for a game of one player.
    """

    id: str
    roles: Sequence[str] = ()

    def __post_init__(self) -> None:
        if find_spec("textarena") is None:
            raise InputError("the library textarena is not installed: run pip install textarena.")
        self.game: Any = import_module("textarena").make(self.id)
        self.read: dict[int, str] = {}  # what the wrappers have shown to each player

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.game.reset(num_players=len(self.roles) or 1, seed=seed)
        return self.observation()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done, _ = self.game.step(action)
        text, info = self.observation()
        if not done:
            return text, 0.0, False, False, info
        rewards, _ = self.game.close()
        numbers = {  # of Countdown, a text after an action that it cannot read
            player: float(reward) if isinstance(reward, int | float) else 0.0
            for player, reward in (rewards or {}).items()
        }
        if not self.roles:
            return text, numbers.get(0, 0.0), True, False, info
        paid = {role: numbers.get(player, 0.0) for player, role in enumerate(self.roles)}
        return text, 0.0, True, False, info | {"rewards": paid}

    def observation(self) -> tuple[str, dict[str, Any]]:
        """Returns what the wrappers show that the next player has not read, and its role."""
        player, text = self.game.get_observation()
        new = text.removeprefix(self.read.get(player, ""))
        self.read[player] = text
        return new, {"role": self.roles[player]} if self.roles else {}
