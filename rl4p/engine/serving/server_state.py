"""The state of the server: its model, its limits and its counts."""

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel

from rl4p.base.types import Sampling
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.serving.active_request import ActiveRequest, Choice, CompletionOptions, ReadyQueue
from rl4p.engine.serving.body import HttpError
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.model.policy import Policy

SEEDS = 2**63
# Random numbers of the operating system would release the interpreter to another thread.
RANDOM = random.Random()
ANSWER_BYTES = 2**26  # of a response
TOKEN_BYTES = 48  # of a token in a response, about: its id, its text and its log-probability


@dataclass(kw_only=True)
class ServedModel(ABC):
    """A policy behind an address, and the requests that it serves.

    Attributes:
      name: the name of the model in requests.
      source: the folder or the class of the weights.
      address: the URL of the server.
      waiting: the most completions that wait for a slot.
      add_prompting: returns the messages of a chat request with the prompts of a data set added.
      open: the completions and scored prompts that run or wait.
    """

    policy: Policy
    detokenizer: Detokenizer
    queue: ReadyQueue
    name: str
    source: str
    address: str
    slots: int
    waiting: int
    add_prompting: Callable[[list[Mapping[str, Any]]], list[Mapping[str, Any]]] = list
    open: int = 0
    disconnects: int = 0  # clients that closed the connection before their response
    closing: bool = False
    rids: dict[str, ActiveRequest] = field(default_factory=dict)  # by SGLang's request id
    responses: dict[tuple[str, int], int] = field(default_factory=dict)  # by path and status

    @property
    def positions(self) -> int:
        return self.policy.decoder.config.max_positions

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise HttpError(
                f"The model {name} is not served here: write {self.name}.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def check_room(self, count: int) -> None:
        """Refuses a request if too many completions run or wait already."""
        if self.closing:
            raise HttpError("The server is shutting down.", status=503)
        if count > self.slots + self.waiting:
            raise HttpError(
                f"The request asks for {count} completions, but the server takes "
                f"{self.slots + self.waiting} at a time."
            )
        if self.open + count > self.slots + self.waiting:
            raise HttpError(
                f"{self.open} completions are running or waiting: try again later.", status=429
            )

    def check_prompt(self, tokens: Sequence[int], max_tokens: int, param: str) -> None:
        """Refuses a prompt that is empty, too long, or has tokens outside the vocabulary."""
        if not tokens:
            raise HttpError("The prompt is empty: it needs at least one token.", param=param)
        if len(tokens) + max_tokens > self.positions:
            raise HttpError(
                f"A prompt of {len(tokens)} tokens with at most {max_tokens} new tokens is longer "
                f"than the {self.positions} positions of the model.",
                param=param,
                code="context_length_exceeded",
            )
        self.check_tokens(tokens, param)

    def check_tokens(self, tokens: Sequence[int], param: str) -> None:
        most = self.policy.decoder.config.vocabulary - 1
        if tokens and max(tokens) > most:
            raise HttpError(f"{param} must be a list of token ids from 0 to {most}.", param=param)

    @property
    @abstractmethod
    def version(self) -> str:
        """The weight version of tokens that are drawn from now on."""

    @abstractmethod
    def start(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
        scored: bool = False,
        unsent: Callable[[], int] = lambda: 0,
    ) -> ActiveRequest:
        """Starts a request; `ActiveRequest.disconnect` or its end frees its slots.

        Args:
          seeds: a seed for each completion of each prompt.
          scored: whether the log-probabilities of the prompts are computed too.
          unsent: returns the bytes of the response for which the client has no room.
        """

    def check_size(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        scored: bool,
        shown: bool,
    ) -> None:
        """Refuses a request for which there is no room, or whose response may be too long.

        Args:
          n: the number of completions of each prompt.
          scored: whether the log-probabilities of the prompts are computed.
          shown: whether each completion has the tokens of its prompt beside it.
        """
        count = len(prompts) * n
        self.check_room(count * (options.max_tokens > 0) + scored * len(prompts))
        tokens = sum(map(len, prompts)) * n * shown
        tokens += count * options.max_tokens * (1 + (options.alternatives or 0))
        if (size := TOKEN_BYTES * tokens) > ANSWER_BYTES:
            raise HttpError(
                f"The response may have {size >> 20} MiB, and at most {ANSWER_BYTES >> 20} MiB are "
                "sent: request fewer completions, tokens or log-probabilities at a time."
            )

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the most tokens of a completion that names no limit."""
        return max(self.positions - len(prompt), 1)

    def sampling_of(self, request: BaseModel, sampling: Sampling) -> Sampling:
        """Returns the distribution of the tokens of a request.

        Args:
          sampling: the distribution that the fields of the request name, or their defaults.
        """
        return sampling

    def as_sampled(self, message: dict[str, Any]) -> Mapping[str, Any]:
        """Returns a message of a conversation as the chat template takes it."""
        return message

    def answered(self, choice: Choice, message: Mapping[str, Any]) -> None:  # noqa: B027
        """Receives the message that a client gets for a choice that has ended."""

    def count(self, change: int) -> None:
        self.open += change

    def check_text(self, length: int, param: str) -> None:
        """Refuses a text that has too many tokens, however it is encoded."""
        if length > self.positions * self.detokenizer.longest:
            raise HttpError(
                f"A prompt of {length} characters is longer than the {self.positions} positions of "
                "the model.",
                param=param,
                code="context_length_exceeded",
            )

    async def encode(
        self,
        text: str,
        param: str,
        *,
        special: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Returns the token ids of a prompt; a long one is encoded in a thread.

        Args:
          special: whether the tokenizer adds special tokens.
          messages: the messages that the chat template made the text of, if it did.
        """
        self.check_text(len(text), param)
        backend = self.detokenizer.backend
        if len(text) < 4096:
            return backend.encode(text, add_special_tokens=special).ids
        # `encode` would keep all other threads from running.
        encode = partial(backend.encode_batch_fast, [text], add_special_tokens=special)
        (encoding,) = await asyncio.to_thread(encode)
        return encoding.ids


@dataclass(kw_only=True)
class ServerState(ServedModel):
    """A policy whose scheduler serves all requests."""

    scheduler: Scheduler

    @property
    def version(self) -> str:
        return self.scheduler.version

    def start(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
        scored: bool = False,
        unsent: Callable[[], int] = lambda: 0,
    ) -> ActiveRequest:
        active = ActiveRequest(
            self.queue, self.detokenizer, options, stream=stream, count=self.count, unsent=unsent
        )
        active.submit(self.scheduler, prompts, seeds, scored=scored)
        return active


def seeds_of(seed: int | None, prompts: int, n: int) -> list[list[int]]:
    """Returns a seed for each completion of each prompt: random, or counted from `seed`."""
    if seed is None:
        return [[RANDOM.getrandbits(63) for _ in range(n)] for _ in range(prompts)]
    return [[(seed + i) % SEEDS for i in range(n)]] * prompts


def new_id() -> str:
    return f"{RANDOM.getrandbits(96):024x}"


def or_null(logprob: float) -> float | None:
    """Returns a log-probability that JSON can hold: null for nan and the infinities."""
    return logprob if math.isfinite(logprob) else None
