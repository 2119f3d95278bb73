"""What a server serves, and the requests that it takes."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl4p.errors import InputError, RunError
from rl4p.model.policy import Policy
from rl4p.serving.completion import Wanted
from rl4p.serving.live import Live, Mailbox
from rl4p.serving.refusals import RefusalError
from rl4p.serving.scheduler import Scheduler
from rl4p.serving.text import Texts

SEEDS = 2**63
# A generator of its own, since reading random numbers from the system hands the interpreter to
# another thread.
RANDOM = random.Random()


@dataclass(kw_only=True)
class Served:
    """A policy with its scheduler.

    Attributes:
      name: the name of the model in requests.
      source: the folder or the class that the weights are from.
      address: the URL of the server.
      waiting: the most completions that wait for a slot.
      open: the completions that are being generated or wait.
    """

    policy: Policy
    scheduler: Scheduler
    texts: Texts
    mailbox: Mailbox
    name: str
    source: str
    address: str
    slots: int
    waiting: int
    open: int = 0
    gone: int = 0  # clients that closed the connection before their answer
    closing: bool = False
    rids: dict[str, Live] = field(default_factory=dict)  # SGLang's names of running requests
    answers: dict[tuple[str, int], int] = field(default_factory=dict)  # by path and status

    @property
    def positions(self) -> int:
        return self.policy.decoder.config.max_positions

    @property
    def vocabulary(self) -> int:
        return self.policy.decoder.config.vocabulary

    def check_model(self, name: str | None) -> None:
        """Refuses requests for another model."""
        if name not in (None, self.name):
            raise RefusalError(
                f"The model {name} is not served here: write {self.name}.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def check_room(self, count: int) -> None:
        """Refuses a request of so many completions if too many wait already."""
        if self.closing:
            raise RefusalError("The server is shutting down.", status=503)
        if count > self.slots + self.waiting:
            raise RefusalError(
                f"The request asks for {count} completions, but the server takes "
                f"{self.slots + self.waiting} at a time."
            )
        if self.open + count > self.slots + self.waiting:
            raise RefusalError(
                f"{self.open} completions are running or waiting: try again later.", status=429
            )

    def check_length(self, tokens: Sequence[int], max_tokens: int, param: str) -> None:
        """Refuses a prompt that is empty, or that leaves no room for its completion."""
        if not tokens:
            raise RefusalError("The prompt is empty: it needs at least one token.", param=param)
        if len(tokens) + max_tokens > self.positions:
            raise RefusalError(
                f"A prompt of {len(tokens)} tokens with at most {max_tokens} new tokens is longer "
                f"than the {self.positions} positions of the model.",
                param=param,
                code="context_length_exceeded",
            )

    def live(
        self,
        wanted: Wanted,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
    ) -> Live:
        """Starts a request; `Live.leave` or its end frees its slots."""
        live = Live(self.mailbox, self.texts, wanted, stream=stream)
        live.submit(self.scheduler, prompts, seeds)
        return live

    async def score(self, tokens: Sequence[int]) -> list[float]:
        """Returns the log-probability of each token under the model; that of the first is nan."""
        loop = self.mailbox.loop
        found: asyncio.Future[list[float]] = loop.create_future()

        def arrived(result: list[float] | Exception) -> None:
            if found.done():
                return
            if isinstance(result, Exception):
                found.set_exception(RefusalError(str(result), status=503))
            else:
                found.set_result(result)

        def deliver(result: list[float] | Exception) -> None:
            loop.call_soon_threadsafe(arrived, result)

        try:
            submission = self.scheduler.score(tokens, deliver)
        except (InputError, RunError) as error:
            status = 400 if isinstance(error, InputError) else 503
            raise RefusalError(str(error), status=status) from None
        try:
            return await found
        except asyncio.CancelledError:
            self.scheduler.cancel(submission)
            raise

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a prompt; a long one is encoded in a thread."""
        encode = self.texts.backend.encode
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


def usage(prompts: Sequence[Sequence[int]], completions: Sequence[Any]) -> dict[str, Any]:
    """Returns the numbers of tokens; each prompt counts once."""
    read, drawn = sum(map(len, prompts)), sum(len(each.tokens) for each in completions)
    return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}
