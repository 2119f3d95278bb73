"""The contracts of environments, which answer what the policy says, and of agents.

An environment sees messages, as chat templates take them; it never sees tokens. The rollout alone
turns messages into tokens (`rollout/recorder.py`), so that the policy is trained on
exactly the tokens that it chose. An agent is a program that talks to the policy over HTTP, through
a server whose contract is here too.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rl4p.base.types import Prompt, Sampling
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Completion

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
      rewards: further rewards by the name of a role; each goes to the last message of the role.
      done: whether the episode has ended.
      metrics: numbers to report, by name.
      state: the state after the step, for advantages that compare repeated states; None if it has
        no name.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    rewards: Mapping[str, float] = field(default_factory=dict)
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


class HasRoles(Protocol):
    """An `OpenEnvironment` with several agents, such as two players, or a proposer and a solver.

    Each role has a conversation of its own, which begins with the prompt. What `reset` and `step`
    return is read by the role that speaks next, and by it alone. The options of the environment
    name all roles in an attribute `roles`.

    Attributes:
      role: the role that speaks next, after `reset` and after each `step`.
    """

    role: str


@runtime_checkable
class GradesCutEpisodes(Protocol):
    """An `OpenEnvironment` whose reward comes at the end of an episode, whatever has ended it."""

    async def cut_reward(self) -> float:
        """Returns the reward of an episode that a limit of turns or tokens has ended.

        It is called once, before `close`, if the policy has said something. A message that a limit
        has cut is not in `step`.
        """
        ...


@runtime_checkable
class ChangesFiles(OpenEnvironment, Protocol):
    """An `OpenEnvironment` that knows at its end which files an episode has changed.

    Attributes:
      changed_files: the sizes of these files in bytes, by their paths.
    """

    changed_files: Mapping[str, int]


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


@dataclass(frozen=True, kw_only=True)
class AgentEpisode:
    """What an agent receives: the row of the data set, and the address of its episode.

    Attributes:
      prompt: the row.
      base_url: the address for OpenAI's client, which ends in `/v1`. No other episode has it.
      api_key, model: what clients require; any other value does, too.
      seed: equal for all samples of a prompt in a step.
      addresses: the addresses of the roles by name, if the agent has an attribute `roles` with
        their names; `base_url` is the first one.
    """

    prompt: Prompt
    base_url: str
    api_key: str
    model: str
    seed: int
    addresses: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class OpensAgent(Protocol):
    """An agent with servers or the like that its episodes share."""

    def playing(self) -> AbstractAsyncContextManager[Callable[[AgentEpisode], Any]]:
        """Returns the function of the episodes, for the calls while the context is open."""
        ...


class CallRefused(Exception):
    """A call of the model that the episode does not allow; the message is a sentence.

    Attributes:
      longest: the longest context for which there is room; None if the reason is another.
    """

    def __init__(self, message: str, longest: int | None = None) -> None:
        super().__init__(message)
        self.longest = longest


def never(completion: Completion) -> None:
    """Says that no stop string ends a completion."""


class ModelCalls(Protocol):
    """The calls of the model in one episode, which are recorded as tokens.

    Attributes:
      sampling: the distribution that all tokens are drawn from.
    """

    sampling: Sampling

    def continued(self, text: str) -> tuple[Sequence[int], str]:
        """Returns tokens that begin a text, and the rest of the text.

        The tokens are those of earlier calls, if the text begins with their text; otherwise none.
        """
        ...

    def read(
        self, text: str, tokens: Sequence[int], messages: Sequence[Message] | None = None
    ) -> None:
        """Receives the tokens of the text of a context, before the call of `complete`.

        Args:
          messages: the messages that the chat template made the text of; None if there are none.
        """
        ...

    def as_sampled(self, message: Message, earlier: Sequence[Message] = ()) -> Message:
        """Returns a message of the assistant with the text that was sampled, if it was.

        Args:
          earlier: the conversation before it, as the client sent it.
        """
        ...

    def answered(
        self, tokens: Sequence[int], message: Message, earlier: Sequence[Message] = ()
    ) -> None:
        """Receives the message that a client gets for the tokens of a completion.

        Args:
          earlier: the conversation before it, as the client sent it.
        """
        ...

    def room(self, context: Sequence[int]) -> int:
        """Returns the most tokens of a completion of a context; at least 1.

        Raises:
          CallRefused: the episode has no room for another token, or it has ended.
        """
        ...

    async def complete(
        self,
        context: Sequence[int],
        max_tokens: int,
        stopped: Callable[[Completion], int | None] = never,
        role: str = "",
    ) -> Completion:
        """Returns the completion of a context.

        Args:
          role: the role that speaks; "" if there are no roles.
          stopped: returns how many tokens of a completion complete a stop string, after which it
            ends; None if none do.

        Raises:
          CallRefused: as `room`.
        """
        ...


class OpenAgentServer(Protocol):
    """A server with an address for each episode.

    Attributes:
      model: the name of the model.
    """

    model: str

    def register(self, calls: ModelCalls, role: str = "") -> str:
        """Returns the address for the calls of a role of an episode, which ends in `/v1`."""
        ...

    def unregister(self, address: str) -> str | None:
        """Closes an address; returns why it refused a request last, None if it refused none."""
        ...


@runtime_checkable
class ServesAgents(Protocol):
    """Options of a server for agents."""

    def serving(self, policy: Policy) -> AbstractAsyncContextManager[OpenAgentServer]:
        """Serves in the running event loop while the context is open."""
        ...
