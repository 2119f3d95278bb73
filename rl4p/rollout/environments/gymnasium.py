"""Text environments with the interface of Gymnasium."""

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt
from rl4p.data.tool_calls import MalformedCall
from rl4p.distributed.daemon_threads import in_thread
from rl4p.protocols.environment import Message, StepResult
from rl4p.rollout.environments.actions import TextActions

log = logging.getLogger(__name__)

ONE_RESET = Lock()  # held by sequential resets


@dataclass(frozen=True, kw_only=True)
class Gymnasium(TextActions):
    """An environment with `reset(seed=...)` and `step(action)`, whose observations are texts.

    The first observation is appended to the prompt, on a new line, and each later one answers a
    message of the policy.

    Environments such as those of GEM seed the global generator of Python in `reset` and draw from
    it. Such resets disturb one another when they run at the same time, and samples of one prompt
    then meet different worlds; `sequential_resets` prevents it.

    Attributes:
      factory: returns a new environment; in YAML `factory._target_=gymnasium.make` and
        `factory.id=NAME`.
      sequential_resets: whether environments are made and reset one after another.
    """

    factory: Callable[[], Any]
    sequential_resets: bool = False

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InputError(
                "environment.factory must be a class or a function: name it by _target_."
            )

    def tools(self, prompt: Prompt) -> None:
        return None

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "GymnasiumEpisode":
        return GymnasiumEpisode(self, seed)


@dataclass(eq=False)
class GymnasiumEpisode:
    """An episode of `Gymnasium`."""

    options: Gymnasium
    seed: int
    environment: Any = None  # until `reset`
    state: Any = None  # the last observation

    async def reset(self) -> str:
        sequential = self.options.sequential_resets

        def first() -> tuple[Any, bool]:
            """Returns the first observation, and whether Python's global generator was used."""
            with ONE_RESET if sequential else nullcontext():
                before = random.getstate()
                self.environment = self.options.factory()
                observation, _ = self.environment.reset(seed=self.seed)
                return observation, random.getstate() != before

        self.state, drew = await in_thread(first)
        if drew and not sequential:
            warn_once(type(self.environment).__name__)
        return f"\n{self.message(self.state)['content']}"

    async def step(self, message: Message) -> StepResult:
        action = self.options.action(message["content"])
        if isinstance(action, MalformedCall):
            return self.options.without_action(self.state)
        observation, reward, terminated, truncated, _ = await in_thread(
            lambda: self.environment.step(action)
        )
        self.state = observation
        return StepResult(
            messages=[self.message(observation)],
            reward=float(reward),
            done=bool(terminated or truncated),
            state=observation,
        )

    def message(self, observation: Any) -> Message:
        """Returns an observation as a message of the user.

        Raises:
          TypeError: it is no text.
        """
        if not isinstance(observation, str):
            raise TypeError(f"an observation is a text, not {type(observation).__name__}")
        return {"role": "user", "content": observation}

    async def close(self) -> None:
        if hasattr(self.environment, "close"):  # optional in GEM
            await in_thread(self.environment.close)


@cache
def warn_once(name: str) -> None:
    """Warns of an environment whose resets use the global generator."""
    log.warning(
        "The reset of %s uses Python's global generator, so the samples of a prompt may meet "
        "different worlds: set rollout.environment.sequential_resets=true.",
        name,
    )
