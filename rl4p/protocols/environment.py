"""The contract of environments, which answer what the policy says.

An environment sees messages, as chat templates take them; it never sees tokens. The rollout alone
turns messages into tokens (`rollout/exact_conversation.py`), so that the policy is trained on
exactly the tokens that it chose.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rl4p.base.types import Prompt

Message = Mapping[str, Any]  # with `role` and `content`


def columns_of(prompt: Prompt) -> dict[str, Any]:
    """Returns the columns of a row of the data set, as environments and agents get them."""
    columns = {"question": prompt.question, "answer": prompt.answer, "id": prompt.id}
    return columns | {"task": prompt.task, **prompt.metadata}


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What an environment answers to a message of the policy.

    Attributes:
      messages: what the policy reads next, such as the result of a tool.
      reward: the reward of the message.
      done: whether the episode has ended.
      metrics: numbers to report, by name.
      state: the state after the step, for advantages that compare repeated states; None if it has
        no name.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    state: Hashable = None


class OpenEnvironment(Protocol):
    """One episode of an environment. An exception of any method makes the episode invalid."""

    async def reset(self) -> Sequence[Message] | str:
        """Returns the messages after the prompt that the policy reads before its first one.

        A text is appended to the last message of the prompt.
        """
        ...

    async def step(self, message: Message) -> StepResult:
        """Returns the answer to a message of the policy."""
        ...

    async def close(self) -> None:
        """Ends the episode. It is called once, also after an exception or a deadline."""
        ...


@runtime_checkable
class OpensEnvironment(Protocol):
    """The options of an environment: a frozen dataclass that YAML describes."""

    def open(self, prompt: Prompt, seed: int, episode_id: str) -> OpenEnvironment:
        """Returns a new episode.

        Args:
          prompt: the row of the data set.
          seed: equal for all samples of a prompt in a step.
          episode_id: of this episode alone; the same in each run of the same configuration.
        """
        ...

    def tools(self, prompt: Prompt) -> Sequence[Message] | None:
        """Returns the JSON schemas of the tools that the policy may call; None for no tools."""
        ...
