"""Roles of an episode that another model plays, whose tokens are not trained."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rl4p.base.address import api_key, check_address, check_key_variable
from rl4p.base.errors import RunError
from rl4p.base.http import HttpClient, InvalidResponseError, RefusedError, RequestError, read_json
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.configuration.capability import Address, Variable
from rl4p.data.messages import for_request
from rl4p.engine.remote.chat import chat_body, read_chat
from rl4p.protocols.environment import Message
from rl4p.rollout.episodes import EpisodeFailure

# Returns the next message of a conversation; the second argument is a seed.
Answers = Callable[[Sequence[Message], int], Awaitable[Message]]


@runtime_checkable
class Plays(Protocol):
    """What plays a frozen role."""

    def playing(self) -> AbstractAsyncContextManager[Answers]:
        """Returns a context, in which the given function answers.

        The function raises an `EpisodeFailure` if it gets no answer.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A role that a chat server plays (`POST /v1/chat/completions`).

        python -m rl4p.serve model=pretrained model.path=FOLDER port=8000
        python -m rl4p.train ... +partner@rollout.frozen.second=chat \
            rollout.frozen.second.url=http://localhost:8000/v1

    The weights of the server stay as they are: those of the start of the run, if it serves the same
    folder. A request that fails for good makes the sample invalid. A wrong address or key stops the
    run.

    Attributes:
      url: the address of the API.
      model: the name of the model in requests.
      key_variable: the environment variable with the API key.
      body: more fields of a request, such as `temperature`; None leaves a field out.
      timeout_seconds: the deadline of one request.
      attempts: how often a request is sent before it has failed.
      concurrency: the number of requests at a time.
    """

    url: Address
    model: str = "rl4p"
    key_variable: Variable | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: AboveZero = 60.0
    attempts: Positive = 3
    concurrency: Positive = 64

    def __post_init__(self) -> None:
        check_address(self.url, "url", example="http://HOST:PORT/v1")
        check_key_variable(self.key_variable)

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[Answers]:
        """Opens the connections of the role, and yields a function.

        The function takes a conversation and a seed, and returns the next message of the role.
        """
        key = api_key(self.key_variable)
        client = HttpClient(url=self.url, key=key, connections=self.concurrency)

        def message(content: bytes) -> Message:
            text, _ = read_chat(read_json(content))
            if text is None:
                raise InvalidResponseError("an answer without a text")
            return {"role": "assistant", "content": text}

        async def answer(messages: Sequence[Message], seed: int) -> Message:
            body = chat_body(self.model, for_request(messages), self.body, seed=seed)
            limits = {"seconds": self.timeout_seconds, "attempts": self.attempts}
            try:
                return await client.retry("POST", "/chat/completions", body, message, **limits)
            except RequestError as error:
                hint = error.hint("key_variable") if isinstance(error, RefusedError) else None
                if hint is not None:
                    raise RunError(f"{self.url}: {error} ({hint}).") from None
                raise EpisodeFailure(f"{self.url}: {error}") from None

        async with aclosing(client):
            yield answer
