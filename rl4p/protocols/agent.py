"""The contracts of agents: programs that talk to the policy over HTTP, and the server for them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from rl4p.base.types import Prompt, Sampling
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Completion

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class AgentEpisode:
    """What an agent receives: the row of the data set, and the address of its episode.

    Attributes:
      prompt: the row.
      base_url: the address for OpenAI's client, which ends in `/v1`. No other episode has it.
      api_key, model: what clients require; any other value does, too.
      seed: equal for all samples of a prompt in a step.
    """

    prompt: Prompt
    base_url: str
    api_key: str
    model: str
    seed: int


class CallRefused(Exception):
    """A call of the model that the episode does not allow; the message is a sentence.

    Attributes:
      param: the field of the request that is wrong, if it is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


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

    def as_sampled(self, message: Message) -> Message:
        """Returns a message of the assistant with the text that was sampled, if it was."""
        ...

    def answered(self, tokens: Sequence[int], message: Message) -> None:
        """Receives the message that a client gets for the tokens of a completion."""
        ...

    def room(self, context: Sequence[int]) -> int:
        """Returns the most tokens of a completion of a context; at least 1.

        Raises:
          CallRefused: the episode has no room for another token, or it has ended.
        """
        ...

    async def complete(self, context: Sequence[int], max_tokens: int) -> Completion:
        """Returns the completion of a context.

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

    def register(self, calls: ModelCalls) -> str:
        """Returns the address for the calls of an episode, which ends in `/v1`."""
        ...

    def unregister(self, address: str) -> None:
        """Closes an address."""
        ...


@runtime_checkable
class ServesAgents(Protocol):
    """Options of a server for agents."""

    def serving(self, policy: Policy) -> AbstractAsyncContextManager[OpenAgentServer]:
        """Serves in the running event loop while the context is open."""
        ...
