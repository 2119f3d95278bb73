"""Text environments with the interface of Gymnasium."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl4p.data.tool_calls import MalformedCall
from rl4p.distributed.daemon_threads import in_thread
from rl4p.errors import InputError
from rl4p.protocols.environment import Message, StepResult
from rl4p.rollout.environments.text_actions import TextActions
from rl4p.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Gymnasium(TextActions):
    """An environment with `reset(seed=...)` and `step(action)`, whose observations are texts.

    The first observation is appended to the prompt, on a new line, and each later one answers a
    message of the policy.

    Attributes:
      factory: returns a new environment; in YAML `factory._target_=gymnasium.make` and
        `factory.id=NAME`.
    """

    factory: Callable[[], Any]

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InputError(
                "environment.factory must be a class or a function: name it by _target_."
            )

    def tools(self, prompt: Prompt) -> None:
        return None

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> "GymnasiumEpisode":
        return GymnasiumEpisode(self, self.factory(), seed)


class GymnasiumEpisode:
    """An episode of `Gymnasium`."""

    def __init__(self, options: Gymnasium, environment: Any, seed: int) -> None:
        self.options, self.environment, self.seed = options, environment, seed
        self.state: Any = None  # the last observation

    async def reset(self) -> str:
        observation, _ = await in_thread(lambda: self.environment.reset(seed=self.seed))
        self.state = observation
        return f"\n{self.message(observation)['content']}"

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
        await in_thread(self.environment.close)
