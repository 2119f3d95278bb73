"""Requests to a grading server over HTTP: many at a time, with retries, to one address only.

Failures that may pass are tried again, after a pause that grows exponentially and varies at random:
no connection, no answer in time, HTTP 408, 409, 425, 429 and 5xx, and an answer that cannot be
used. The header Retry-After lengthens the pause. Any other failure is final. A wrong address or
key stops the run, as does a redirect, whose target would receive the texts and the key.
"""

import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from rl4p.errors import RunError

Result = TypeVar("Result")

MAY_PASS = {408, 409, 425, 429, *range(500, 600)}
STOPS_THE_RUN = {
    **dict.fromkeys(range(300, 400), "redirects are not followed: give the address itself"),
    401: "key_variable=NAME names the environment variable of the API key",
    403: "key_variable=NAME names the environment variable of the API key",
    404: "is the address complete?",
    405: "is the address complete?",
}
FIRST_PAUSE = 0.5  # seconds after the first attempt; each later pause is twice as long
LONGEST_PAUSE = 60.0
LARGEST_ANSWER = 32 * 2**20  # bytes
MOST_FAILURES = 8  # in a row, of different requests; then the server counts as down


class UselessAnswerError(Exception):
    """An answer that cannot be used. The message says why."""


class FailedError(Exception):
    """A failed attempt; `again` says whether another may succeed, `after` in how many seconds."""

    def __init__(self, reason: str, *, again: bool, after: float = 0.0):
        super().__init__(reason)
        self.again = again
        self.after = after


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """The result of a request that failed for good."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address that answers POST requests of JSON, and how to ask it.

    Attributes:
      url: the address.
      key_variable: the environment variable with the API key; None sends no key.
      timeout_seconds: the deadline of one attempt, from its connection to its last byte.
      attempts: how often a request is sent before it has failed.
      concurrency: the number of requests at a time.
    """

    url: str
    key_variable: str | None
    timeout_seconds: float
    attempts: int
    concurrency: int

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={self.url} is not an address: write http://HOST:PORT/PATH.")
        if parts.username or parts.password:
            raise ValueError(
                "url contains a user name or a password, which would be saved: put an API key into "
                "an environment variable and name that with key_variable=NAME."
            )
        name = self.key_variable
        if name is not None and not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(  # it may be the key itself, so it is not repeated
                "key_variable is not the name of an environment variable: write the name, such as "
                "JUDGE_API_KEY, not the key."
            )
        if name is not None and not os.environ.get(name):
            raise ValueError(f"key_variable={name}: this environment variable is not set.")

    @property
    def key(self) -> str:
        """Returns the API key. It is no attribute, so that it is not printed or saved."""
        return os.environ.get(self.key_variable, "") if self.key_variable else ""

    def ask(
        self, bodies: Sequence[Mapping[str, Any]], read: Callable[[int, Any], Result]
    ) -> list[Result | NoAnswer]:
        """Sends a request for each body, and returns what `read` makes of the answers, in order.

        Args:
          read: called with the index of the body and the JSON value of its answer; it raises
            `UselessAnswerError` if the answer cannot be used.

        Raises:
          RunError: the address or the key is wrong.
        """
        return asyncio.run(self.ask_all(bodies, read))

    async def ask_all(
        self, bodies: Sequence[Mapping[str, Any]], read: Callable[[int, Any], Result]
    ) -> list[Result | NoAnswer]:
        results: list[Result | NoAnswer] = [NoAnswer(reason="it was not sent")] * len(bodies)
        waiting, failures = iter(range(len(bodies))), 0
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}

        async def work(http: httpx2.AsyncClient) -> None:
            nonlocal failures
            for index in waiting:
                if failures >= MOST_FAILURES:
                    results[index] = NoAnswer(
                        reason=f"it was not sent, since {failures} others in a row had failed"
                    )
                    continue
                try:
                    # Escaped to ASCII: texts may hold lone surrogates, which UTF-8 has not.
                    content = json.dumps(bodies[index]).encode()
                    results[index] = await self.answer(http, content, lambda x: read(index, x))  # noqa: B023 awaited at once
                    failures = 0
                except FailedError as failure:
                    results[index] = NoAnswer(reason=str(failure))
                    failures += 1

        limits = httpx2.Limits(max_connections=self.concurrency)
        async with httpx2.AsyncClient(
            headers=headers, limits=limits, timeout=None, follow_redirects=False
        ) as http:
            tasks = [asyncio.create_task(work(http)) for _ in range(self.concurrency)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return results

    async def answer(
        self, http: httpx2.AsyncClient, content: bytes, read: Callable[[Any], Result]
    ) -> Result:
        """Returns what an answer says, after as many attempts as it takes.

        Raises:
          FailedError: the last attempt failed too, or no other may succeed.
        """
        attempt = 1
        while True:
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    return read(await self.attempt(http, content))
            except FailedError as error:
                failure = error
            except UselessAnswerError as error:
                failure = FailedError(self.public(str(error)), again=True)
            except TimeoutError:
                reason = f"there was no answer within {self.timeout_seconds:g} seconds"
                failure = FailedError(reason, again=True)
            except httpx2.HTTPError as error:
                reason = self.public(f"{type(error).__name__} {error}")
                failure = FailedError(reason, again=True)
            if not failure.again or attempt == self.attempts:
                raise failure
            await asyncio.sleep(pause(attempt, failure.after))
            attempt += 1

    async def attempt(self, http: httpx2.AsyncClient, content: bytes) -> Any:
        """Sends one request, and returns the JSON value of its answer."""
        found = bytearray()
        async with http.stream("POST", self.url, content=content) as answer:
            async for part in answer.aiter_bytes():
                found += part
                if len(found) > LARGEST_ANSWER:
                    raise FailedError(f"an answer over {LARGEST_ANSWER >> 20} MiB", again=False)
        status = answer.status_code
        if status == 200:
            try:
                return json.loads(found)
            except (ValueError, RecursionError) as error:
                raise UselessAnswerError(f"an answer that is no JSON ({error})") from None
        reason = self.public(f"HTTP {status} {found[:2000].decode(errors='replace')}")
        if status in STOPS_THE_RUN:
            raise RunError(f"{self.url}: {reason} ({STOPS_THE_RUN[status]}).")
        after = seconds_in(answer.headers.get("Retry-After", ""))
        raise FailedError(reason, again=status in MAY_PASS, after=after)

    def public(self, text: str) -> str:
        """Returns the beginning of a text as one printable line, without the key."""
        text = text.replace(self.key, "[key]") if self.key else text
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]


def seconds_in(header: str) -> float:
    """Returns the seconds of a Retry-After header, at most a minute; 0 if it is no number."""
    try:
        return max(0.0, min(float(header), LONGEST_PAUSE))
    except ValueError:
        return 0.0


def pause(attempt: int, after: float) -> float:
    """Returns the seconds until the next attempt: exponential, varied by half, or as asked."""
    seconds = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
    return after + seconds if after else seconds
