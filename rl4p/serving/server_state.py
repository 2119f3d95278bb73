"""The state of the server: its model, its limits and its counts."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rl4p.errors import InputError, RunError
from rl4p.model.policy import Policy
from rl4p.serving.active_request import ActiveRequest, ReadyQueue
from rl4p.serving.choice import CompletionOptions
from rl4p.serving.detokenizer import Detokenizer
from rl4p.serving.http_errors import HttpError
from rl4p.serving.scheduler import Scheduler

SEEDS = 2**63
# Random numbers of the operating system would release the interpreter to another thread.
RANDOM = random.Random()


@dataclass(kw_only=True)
class ServerState:
    """A policy with its scheduler, and the requests that it serves.

    Attributes:
      name: the name of the model in requests.
      source: the folder or the class of the weights.
      address: the URL of the server.
      waiting: the most completions that wait for a slot.
      open: the completions that are being generated or wait.
    """

    policy: Policy
    scheduler: Scheduler
    detokenizer: Detokenizer
    queue: ReadyQueue
    name: str
    source: str
    address: str
    slots: int
    waiting: int
    open: int = 0
    disconnects: int = 0  # clients that closed the connection before their response
    closing: bool = False
    rids: dict[str, ActiveRequest] = field(default_factory=dict)  # by SGLang's request id
    responses: dict[tuple[str, int], int] = field(default_factory=dict)  # by path and status

    @property
    def positions(self) -> int:
        return self.policy.decoder.config.max_positions

    @property
    def vocabulary(self) -> int:
        return self.policy.decoder.config.vocabulary

    def check_model(self, name: str | None) -> None:
        """Refuses requests for another model."""
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
        """Refuses tokens that are not in the vocabulary."""
        if tokens and max(tokens) >= self.vocabulary:
            raise HttpError(
                f"{param} must be a list of token ids from 0 to {self.vocabulary - 1}.", param=param
            )

    def start(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
    ) -> ActiveRequest:
        """Starts a request; `ActiveRequest.disconnect` or its end frees its slots."""
        active = ActiveRequest(self.queue, self.detokenizer, options, stream=stream)
        active.submit(self.scheduler, prompts, seeds)
        return active

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """Returns the log-probability of each token given those before it; the first is nan."""
        loop = self.queue.loop
        future: asyncio.Future[list[float]] = loop.create_future()

        def arrived(result: list[float] | Exception) -> None:
            if future.done():
                return
            if isinstance(result, Exception):
                future.set_exception(HttpError(str(result), status=503))
            else:
                future.set_result(result)

        def deliver(result: list[float] | Exception) -> None:
            loop.call_soon_threadsafe(arrived, result)

        try:
            submission = self.scheduler.score(tokens, deliver)
        except (InputError, RunError) as error:
            status = 400 if isinstance(error, InputError) else 503
            raise HttpError(str(error), status=status) from None
        try:
            return await future
        except asyncio.CancelledError:
            self.scheduler.cancel(submission)
            raise

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a prompt; a long one is encoded in a thread."""
        encode = self.detokenizer.backend.encode
        if len(text) < 4096:
            return encode(text, add_special_tokens=special).ids
        return (await asyncio.to_thread(encode, text, add_special_tokens=special)).ids


def seeds_of(seed: int | None, prompts: int, n: int) -> list[list[int]]:
    """Returns a seed for each completion of each prompt: random, or counted from `seed`."""
    if seed is None:
        return [[RANDOM.getrandbits(63) for _ in range(n)] for _ in range(prompts)]
    return [[(seed + i) % SEEDS for i in range(n)]] * prompts


def new_id() -> str:
    """Returns a name that no other request has."""
    return f"{RANDOM.getrandbits(96):024x}"


def or_null(logprob: float) -> float | None:
    """Returns a log-probability that JSON can hold: null for nan and the infinities."""
    return logprob if math.isfinite(logprob) else None
