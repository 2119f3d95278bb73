"""Single-player games of the library textarena, in the form that `environment=gymnasium` takes."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rl4p.base.errors import InputError


@dataclass(eq=False)
class TextArena:
    r"""A game for one player of the library textarena (2504.11442).

    The policy reads what the wrappers of the game show. Most show the whole history each time; what
    the policy has read stands in its conversation, so that it reads the rest. Many games draw from
    Python's global generator, so that `environment=textarena` makes one call at a time. The rewards
    are those of the end; a game counts its turns and ends itself.

        pip install textarena
        python -m rl4p.train rollout=environment +environment@rollout.environment=textarena \
            rollout.environment.factory.id=Minesweeper-v0 data=environment ...

    Attributes:
      id: the name of the game.
    """

    id: str

    def __post_init__(self) -> None:
        if find_spec("textarena") is None:
            raise InputError("the library textarena is not installed: run pip install textarena.")
        self.game: Any = import_module("textarena").make(self.id)
        self.read = ""  # what the wrappers have shown

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.game.reset(num_players=1, seed=seed)
        return self.observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        done, _ = self.game.step(action)
        text = self.observation()
        if not done:
            return text, 0.0, False, False, {}
        rewards, _ = self.game.close()
        reward = (rewards or {}).get(0)  # of Countdown, a text after an action that it cannot read
        return text, float(reward) if isinstance(reward, int | float) else 0.0, True, False, {}

    def observation(self) -> str:
        """Returns what the wrappers show that the policy has not read."""
        _, text = self.game.get_observation()
        new = text.removeprefix(self.read)
        self.read = text
        return new
