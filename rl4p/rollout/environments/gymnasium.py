"""Text environments with the interface of Gymnasium."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt
from rl4p.data.tool_calls import MalformedCall
from rl4p.distributed.daemon_threads import in_thread
from rl4p.protocols.environment import Message, StepResult
from rl4p.rollout.environments.actions import TextActions
from rl4p.rollout.environments.generators import OwnGenerators, watched

HINT = "set rollout.environment.sequential_resets=true"


@dataclass(frozen=True, kw_only=True)
class Gymnasium(TextActions):
    """An environment with `reset(seed=...)` and `step(action)`, whose observations are texts.

    The first observation is appended to the prompt, on a new line, and each later one answers a
    message of the policy. A text `info["prefix"]` stands before an observation and `info["suffix"]`
    on a new line after it, as in GEM, whose games have their boards there.

    Environments such as those of GEM seed the global generator of Python in `reset`, and draw from
    it there and in their steps. Calls disturb one another when they run at the same time, and
    samples of one prompt then meet different worlds. With `sequential_resets` one call runs at a
    time, and each episode has the states of the generators of Python and NumPy for itself.

    With `roles` several agents play. `info["role"]` then names the role that reads an observation
    and speaks next, and `info["rewards"]` may have rewards of roles by name.

    Attributes:
      factory: returns a new environment; in YAML `factory._target_=gymnasium.make` and
        `factory.id=NAME`.
      sequential_resets: whether environments are made, reset and played one call after another.
      info_fields: further fields of `info` that the policy reads, each on a line with its name.
      roles: the names of the roles; empty for a single agent.
    """

    factory: Callable[[], Any]
    sequential_resets: bool = False
    info_fields: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InputError(
                "environment.factory must be a class or a function: name it by _target_."
            )

    def tools(self, prompt: Prompt) -> None:
        return None

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "GymnasiumEpisode":
        return GymnasiumEpisode(self, prompt, seed)


@dataclass(eq=False)
class GymnasiumEpisode:
    """An episode of `Gymnasium`."""

    options: Gymnasium
    prompt: Prompt
    seed: int
    environment: Any = None  # until `reset`
    state: Any = None  # the last observation
    role: Any = None  # the role that reads it

    def __post_init__(self) -> None:
        self.generators = OwnGenerators(self.seed)
        self.known: set[str] = set()  # the fields of `info` so far

    async def call(self, function: Callable[[], Any]) -> Any:
        """Returns what the environment answers, in a thread."""
        if self.options.sequential_resets:
            return await in_thread(lambda: self.generators.call(function))
        return await in_thread(lambda: watched(function, self.name, HINT))

    def name(self) -> str:
        return type(self.environment).__name__

    async def reset(self) -> str:
        def first() -> Any:
            self.environment = self.options.factory()
            return self.environment.reset(seed=self.seed)

        observation, info = await self.call(first)
        self.state, self.role = self.text(observation, info), info.get("role")
        return f"\n{self.state}"

    async def step(self, message: Message) -> StepResult:
        action = self.options.action(message["content"], self.prompt)
        if isinstance(action, MalformedCall):
            return self.options.without_action(self.state)
        observation, reward, terminated, truncated, info = await self.call(
            lambda: self.environment.step(action)
        )
        done = bool(terminated or truncated)
        self.state, self.role = self.text(observation, info), info.get("role")
        if not done and (unknown := set(self.options.info_fields) - self.known):
            has = ", ".join(sorted(self.known)) or "no fields"
            raise InputError(
                f"environment.info_fields={min(unknown)}: the info of {self.name()} has {has}."
            )
        return StepResult(
            messages=[{"role": "user", "content": self.state}],
            reward=float(reward),
            rewards=info.get("rewards", {}) if self.options.roles else {},
            done=done,
            state=self.state,
        )

    def text(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Returns what the policy reads of an observation and its info.

        Raises:
          TypeError: the observation is no text.
        """
        if not isinstance(observation, str):
            raise TypeError(f"an observation is a text, not {type(observation).__name__}")
        self.known |= info.keys()
        prefix, *after = (info.get(name) for name in ("prefix", "suffix"))
        for name in self.options.info_fields:
            if name in info:
                value = info[name]
                words = value if isinstance(value, str) else json.dumps(value, default=str)
                after.append(f"{name}: {words}")
        text = f"{prefix}{observation}" if isinstance(prefix, str) else observation
        for part in after:
            if isinstance(part, str) and part:
                text += part if not text or text.endswith("\n") else f"\n{part}"
        return text

    async def close(self) -> None:
        if hasattr(self.environment, "close"):  # optional in GEM
            await in_thread(self.environment.close)
