"""One server: a pooled connection, deadlines, and whether it takes part.

A request has one attempt here; the pool sends it again, to this server or to another one.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2

LARGEST_ANSWER = 256 * 2**20  # bytes
FIRST_PAUSE = 0.1  # seconds; each later pause is twice as long
LONGEST_PAUSE = 10.0
FAILURES_IN_A_ROW = 3  # after which a server is taken out
MAY_PASS = {408, 409, 425, 429, *range(500, 600)}


class FailedError(Exception):
    """A failed attempt, which may succeed later. The message says why."""


class DownError(FailedError):
    """A server that cannot be reached, or that does not answer in time."""


class RefusedError(Exception):
    """An answer that no repetition changes: the address, the key or the request is wrong.

    Attributes:
      status: the status of the answer.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(eq=False, kw_only=True)
class Server:
    """A server of a pool.

    Attributes:
      url: its address.
      key: the API key, or "".
      healthy: whether it is given requests; it has the current weights then.
      reason: why it was taken out last.
      out: whether the log says that it is taken out.
      running: the tasks of requests that it is answering.
      open: the tasks of all requests that are under way.
      failures: failed requests since the last answer.
      known: what the protocol has found out about this server.
      previous: the log-probabilities of the probe under the weights that it had before.
    """

    url: str
    key: str
    connections: int
    healthy: bool = False
    reason: str = "it was not asked yet"
    out: bool = False
    running: set[asyncio.Task] = field(default_factory=set)
    open: set[asyncio.Task] = field(default_factory=set)
    failures: int = 0
    known: dict[str, Any] = field(default_factory=dict)
    previous: Any = None
    http: httpx2.AsyncClient | None = None

    def client(self) -> httpx2.AsyncClient:
        """Returns the client, which keeps connections open."""
        if self.http is None:
            # One connection more than requests, so that a check never waits for one.
            self.http = httpx2.AsyncClient(
                headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
                limits=httpx2.Limits(
                    max_connections=self.connections + 4,
                    max_keepalive_connections=self.connections + 4,
                ),
                timeout=None,
                follow_redirects=False,
                trust_env=False,
            )
        return self.http

    async def ask(self, method: str, path: str, body: Any = None, *, seconds: float) -> Any:
        """Sends one request, and returns the JSON value of its answer, or its text if it has none.

        Raises:
          RefusedError: the server refuses it, whatever the time.
          FailedError: it failed; `DownError` if the server cannot be reached or is too slow.
        """
        # A task of its own is cancelled once at most: a second time would interrupt the closing of
        # its connection.
        task = asyncio.create_task(self.attempt(method, path, body))
        self.open.add(task)
        task.add_done_callback(self.ended)
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            raise DownError(f"there was no answer to {path} within {seconds:g} seconds")
        try:
            return task.result()
        except httpx2.ConnectError as error:
            raise DownError(self.public(f"it cannot be reached ({error})")) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise FailedError(self.public(f"{type(error).__name__} {error} at {path}")) from None

    def ended(self, task: asyncio.Task) -> None:
        """Forgets a request; its error counts as seen, also if nobody waits for it any more."""
        self.open.discard(task)
        if not task.cancelled():
            task.exception()

    async def attempt(self, method: str, path: str, body: Any) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        found = bytearray()
        url = self.url.rstrip("/") + path
        async with self.client().stream(method, url, content=content, headers=headers) as answer:
            async for part in answer.aiter_bytes():
                found += part
                if len(found) > LARGEST_ANSWER:
                    raise FailedError(f"an answer to {path} over {LARGEST_ANSWER >> 20} MiB")
        status = answer.status_code
        if 200 <= status < 300:
            try:
                return json.loads(found)
            except (ValueError, RecursionError):
                return found.decode(errors="replace")
        reason = self.public(f"HTTP {status} at {path}: {found[:2000].decode(errors='replace')}")
        if status in MAY_PASS:
            raise FailedError(reason)
        raise RefusedError(reason, status)

    async def offered(
        self, method: str, path: str, body: Any = None, *, seconds: float
    ) -> tuple[bool, Any]:
        """Returns whether the server has such a path, and its answer if it has."""
        if self.known.get(path) is False:
            return False, None
        try:
            found = await self.ask(method, path, body, seconds=seconds)
        except RefusedError as error:
            if error.status not in (404, 405, 501):
                raise
            self.known[path] = False
            return False, None
        return True, found

    def public(self, text: str) -> str:
        """Returns the beginning of a text as one printable line, without the key."""
        text = text.replace(self.key, "[key]") if self.key else text
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]

    async def close(self) -> None:
        """Ends all requests and closes the connections."""
        tasks = list(self.open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.http is not None:
            await self.http.aclose()
            self.http = None


def pause(failures: int) -> float:
    """Returns the seconds until the next attempt: exponential, varied at random by half."""
    seconds = min(FIRST_PAUSE * 2 ** min(max(failures - 1, 0), 20), LONGEST_PAUSE)
    return seconds * random.uniform(0.5, 1.5)


class Deadline:
    """A time by which several steps have to be done."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Returns the seconds left, at least a millisecond."""
        return max(self.end - time.monotonic(), 1e-3)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end
