"""Text environments with the interface of Gymnasium."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl4p.data.tool_calls import MalformedCall
from rl4p.distributed.daemon_threads import in_thread
from rl4p.errors import InputError
from rl4p.protocols.environment import Message, StepResult
from rl4p.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Gymnasium:
    """An environment with `reset(seed=...)` and `step(action)`, whose observations are texts.

    The first observation is appended to the prompt, on a new line, and each later one answers a
    message of the policy. The action of a step is the text of the message; if `action_begin` is
    given, what follows its last occurrence, up to `action_end`. A message without an action is
    answered with
    `missing_action` and costs a turn.

    Attributes:
      factory: returns a new environment; in YAML `factory._target_=gymnasium.make` and
        `factory.id=NAME`.
      action_begin, action_end: what encloses the action in a message; null for the whole message.
      missing_action: the answer to a message without an action.
      discrete: whether the action is converted to an int.
    """

    factory: Callable[[], Any]
    action_begin: str | None = None
    action_end: str | None = None
    missing_action: str = "Your message has no action."
    discrete: bool = False

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise InputError(
                "environment.factory must be a class or a function: name it by _target_."
            )

    def tools(self, prompt: Prompt) -> None:
        return None

    def open(self, prompt: Prompt, seed: int) -> "GymnasiumEpisode":
        return GymnasiumEpisode(self, self.factory(), seed)

    def action(self, text: str) -> Any:
        """Returns the action in a message, or what is wrong about it."""
        if self.action_begin is not None:
            _, begin, text = text.rpartition(self.action_begin)
            if not begin:
                return MalformedCall(self.missing_action)
        if self.action_end is not None:
            text, end, _ = text.partition(self.action_end)
            if not end:
                return MalformedCall(self.missing_action)
        if not self.discrete:
            return text.strip()
        try:
            return int(text)
        except ValueError:
            return MalformedCall(self.missing_action)


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
            return StepResult(
                messages=[self.message(action.reason)],
                metrics={"missing_actions": 1.0},
                state=self.state,
            )
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
