"""ResponseSet of an OpenAI-compatible server (`POST /chat/completions`).

A request holds messages, and the server applies its own chat template. One request asks for one
response, with a seed that depends on the run's seed, the prompt and the number of the sample.
Whether equal seeds give equal responses is up to the server.

Failures that may pass are tried again, after a pause that grows exponentially and varies at random:
no connection, no answer before the deadline, HTTP 408, 409, 425, 429 and 5xx, and an answer without
a response. The header Retry-After lengthens the pause. A request that the server refuses (another
4xx) has failed. A wrong address or key ends the job, as does a redirect, whose target would receive
the prompts and the key.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httpx2

from rl4p.errors import InputError, RunError
from rl4p.runs.responses.generation.chat import (
    Chat,
    UselessAnswerError,
    message_of,
    read_answer,
    retry_after,
)
from rl4p.runs.responses.generation.options import Server
from rl4p.runs.responses.generation.responses import ResponseSet
from rl4p.runs.responses.sample import Sample
from rl4p.types import Question

MAY_PASS = {408, 409, 425, 429, *range(500, 600)}
ENDS_THE_JOB = {
    **dict.fromkeys(range(300, 400), "redirects are not followed: give the address itself"),
    401: "server.key_variable=NAME names the environment variable of the API key",
    403: "server.key_variable=NAME names the environment variable of the API key",
    404: "is the address complete? It often ends in /v1; or the server has no such model",
    405: "is the address complete? It often ends in /v1",
}
FIRST_PAUSE = 1.0  # seconds after the first attempt; each later pause is twice as long
LONGEST_PAUSE = 60.0
LONGEST_RETRY_AFTER = 600.0
LARGEST_ANSWER = 32 * 2**20  # bytes
MOST_FAILURES = 8  # in a row; then the server counts as down
SECONDS_BETWEEN_LOOKS = 0.1  # for a signal


class FailedError(Exception):
    """A failure of one response. `again` says whether another attempt may succeed."""

    def __init__(self, reason: str, *, again: bool, after: float = 0.0):
        super().__init__(reason)
        self.again = again
        self.after = after


class SignalError(Exception):
    """A signal asked the job to stop."""


@dataclass(kw_only=True)
class Client:
    """A client of one server.

    Attributes:
      failures: the reasons of the responses that failed for good.
      since_success: what failed since the last success. The samples of a question that the server
        refuses count once, because it refuses all of them.
    """

    server: Server
    chat: Chat
    failures: list[str] = field(default_factory=list)
    since_success: set[tuple[str, int | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        name = self.server.key_variable
        self.key = os.environ.get(name, "") if name else ""
        if name and not self.key:
            raise InputError(f"server.key_variable={name}: this environment variable is not set.")

    def complete(
        self,
        questions: Sequence[Question],
        samples: int,
        responses: ResponseSet,
        stopped: Callable[[], bool],
    ) -> None:
        """Asks for the responses that are missing, and adds each as it arrives.

        Args:
          stopped: asked all the time; if true, open requests are dropped and the call returns.

        Raises:
          InputError: the address or the key is wrong.
          RunError: the server is down.
        """
        asyncio.run(self.complete_all(questions, samples, responses, stopped))

    async def complete_all(
        self,
        questions: Sequence[Question],
        samples: int,
        responses: ResponseSet,
        stopped: Callable[[], bool],
    ) -> None:
        wanted = iter([(x, n) for x in questions for n in responses.missing(x, samples)])
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx2.Limits(max_connections=self.server.concurrency)
        try:
            async with (
                httpx2.AsyncClient(
                    headers=headers, limits=limits, timeout=None, follow_redirects=False
                ) as http,
                asyncio.TaskGroup() as group,
            ):
                watch = group.create_task(self.watch(stopped))
                workers = [
                    group.create_task(self.work(http, wanted, responses))
                    for _ in range(self.server.concurrency)
                ]
                await asyncio.wait(workers)
                watch.cancel()
        except ExceptionGroup as errors:
            known = [e for e in errors.exceptions if isinstance(e, InputError | RunError)]
            if known:
                raise known[0] from None
            if not all(isinstance(error, SignalError) for error in errors.exceptions):
                raise

    async def watch(self, stopped: Callable[[], bool]) -> None:
        """Raises when a signal asks the job to stop, which cancels the other tasks."""
        while not stopped():
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        raise SignalError

    async def work(
        self,
        http: httpx2.AsyncClient,
        wanted: Iterator[tuple[Question, int]],
        responses: ResponseSet,
    ) -> None:
        """Asks for one response after another, until none is wanted."""
        for question, sample in wanted:
            try:
                response = await self.ask(http, question, sample)
            except FailedError as failure:
                self.failures.append(str(failure))
                self.since_success.add((question.id, sample if failure.again else None))
                if len(self.since_success) >= MOST_FAILURES:
                    raise RunError(
                        f"The server {self.server.url} failed {MOST_FAILURES} times in a row, at "
                        f"last with: {failure}. The responses so far are saved: repeat the command "
                        "to go on."
                    ) from None
            else:
                self.since_success.clear()
                responses.add([response])

    async def ask(self, http: httpx2.AsyncClient, question: Question, sample: int) -> Sample:
        """Returns one response, after as many attempts as it takes.

        Raises:
          FailedError: the server refused, or the last attempt failed too.
        """
        seconds, attempt = self.server.timeout_seconds, 1
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await self.attempt(http, question, sample)
            except FailedError as error:
                failure = error
            except UselessAnswerError as error:
                failure = FailedError(self.public(str(error)), again=True)
            except TimeoutError:
                failure = FailedError(f"no answer within {seconds:g} seconds", again=True)
            except httpx2.HTTPError as error:
                reason = self.public(f"{type(error).__name__} {error}")
                failure = FailedError(reason, again=True)
            if not failure.again or attempt == self.server.attempts:
                raise failure
            await asyncio.sleep(pause(attempt, failure.after))
            attempt += 1

    async def attempt(self, http: httpx2.AsyncClient, question: Question, sample: int) -> Sample:
        """Sends one request and reads its answer."""
        url, content = f"{self.server.url.rstrip('/')}/chat/completions", bytearray()
        async with http.stream("POST", url, json=self.chat.body(question, sample)) as answer:
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > LARGEST_ANSWER:
                    raise FailedError(f"an answer over {LARGEST_ANSWER >> 20} MiB", again=False)
        status = answer.status_code
        if status == 200:
            return read_answer(bytes(content), question, sample)
        reason = self.public(f"HTTP {status} {message_of(bytes(content))}")
        if status in ENDS_THE_JOB:
            raise InputError(f"{self.server.url}: {reason} ({ENDS_THE_JOB[status]}).")
        after = retry_after(answer.headers.get("Retry-After", ""))
        if after > LONGEST_RETRY_AFTER:
            raise RunError(
                f"{self.server.url}: {reason}. It asks to wait for {after:.0f} seconds: repeat the "
                "command then, to go on."
            )
        raise FailedError(reason, again=status in MAY_PASS, after=after)

    def public(self, text: str) -> str:
        """Returns the beginning of a text as one printable line, without the key."""
        text = text.replace(self.key, "[key]") if self.key else text
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


def pause(attempt: int, after: float) -> float:
    """Returns the seconds until the next attempt: exponential, varied by half, or as asked."""
    seconds = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
    return after + seconds if after else seconds
