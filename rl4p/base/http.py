"""Requests of JSON to one server, with a deadline, a bound on the response, and retries.

These failures are transient, and `HttpClient.retry` sends the request again: no connection, no
response before the deadline, HTTP 408, 409, 425, 429 and 5xx, and a response that cannot be used.
The pause before the next attempt grows exponentially and varies at random; the header Retry-After
lengthens it. Redirects are not followed, because their target would receive the texts and the key.

Proxies: the environment variables HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY apply to every
server, except to those of this machine (localhost and loopback addresses).
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from rl4p.base.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

TRANSIENT = {408, 409, 425, 429, *range(500, 600)}
FIRST_PAUSE = 1.0  # seconds after the first attempt; each later pause is twice as long
LONGEST_PAUSE = 60.0
LONGEST_RETRY_AFTER = 600.0  # a server that asks to wait for longer gets no other attempt
LARGEST_RESPONSE = 32 * 2**20  # bytes
LONGEST_MESSAGE = 300  # characters
# Seconds for which an idle connection is kept. uvicorn, of vLLM too, closes one after 5, which is
# the client's own default: a request at that time would meet a connection that is being closed.
KEPT = 2.0


class RequestError(Exception):
    """A request without a usable response. The message says why, without the key.

    Attributes:
      transient: whether the same request may succeed later.
      retry_after: the seconds that the server asks to wait; 0 if it names none.
    """

    def __init__(self, reason: str, *, transient: bool = True, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.transient = transient
        self.retry_after = retry_after


class UnreachableError(RequestError):
    """A server without a connection, or without a response before the deadline."""


class InvalidResponseError(RequestError):
    """A response whose content cannot be used."""


class RefusedError(RequestError):
    """A status that no repetition changes: the address, the key or the request is wrong."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason, transient=False)
        self.status = status

    def hint(self, key_option: str) -> str | None:
        """Returns what to change if the address or the key is wrong, otherwise None."""
        if 300 <= self.status < 400:
            return "redirects are not followed: give the address itself"
        if self.status in (401, 403):
            return f"{key_option}=NAME names the environment variable of the API key"
        if self.status in (404, 405):
            return "is the address complete? The address of an API often ends in /v1"
        return None


@dataclass(eq=False, kw_only=True)
class HttpClient:
    """Connections to one server, which stay open between requests until `aclose`."""

    url: str  # to which the path of a request is appended
    key: str = field(default="", repr=False)  # of the API, sent as a bearer token; "" for none
    connections: int  # at a time
    largest_response: int = LARGEST_RESPONSE
    tasks: set[asyncio.Task] = field(default_factory=set, init=False, repr=False)  # under way
    http: httpx2.AsyncClient | None = field(default=None, init=False, repr=False)

    async def retry(
        self,
        method: str,
        path: str,
        body: Any,
        read: Callable[[bytes], Result],
        *,
        seconds: float,
        attempts: int,
    ) -> Result:
        """Sends a request until its response can be used, and returns what `read` returns.

        Args:
          read: called with the content of a response; raises `InvalidResponseError` if it cannot
            be used.
          seconds: the deadline of one attempt, from its connection to the last byte.

        Raises:
          RequestError: the last attempt has failed, or no other can succeed.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return read(await self.send(method, path, body, seconds=seconds))
            except InvalidResponseError as error:  # `read` may have quoted the response
                reason = self.without_key(str(error))
                failure = InvalidResponseError(reason, transient=error.transient)
            except RequestError as error:
                failure = error
            hopeless = not failure.transient or failure.retry_after > LONGEST_RETRY_AFTER
            if hopeless or attempt >= attempts:
                raise failure
            await asyncio.sleep(pause(attempt, failure.retry_after))

    async def send(self, method: str, path: str, body: Any = None, *, seconds: float) -> bytes:
        """Sends one request, and returns the content of its response.

        Args:
          body: a JSON value; None sends no body.
          seconds: the deadline, from the connection to the last byte.

        Raises:
          RequestError: there is no usable response.
        """
        # Escaped to ASCII: texts may hold lone surrogates, which UTF-8 has not.
        content = b"" if body is None else json.dumps(body).encode()
        # A task of its own is cancelled once at most: a second time would interrupt the closing of
        # its connection.
        attempt = self.attempt_to_read if method == "GET" else self.attempt
        task = asyncio.create_task(attempt(method, path, content))
        self.tasks.add(task)
        task.add_done_callback(self.forget)
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            if not task.done():
                task.cancel()
        at = f" at {path}" if path else ""
        if not task.done() or task.cancelled():
            raise UnreachableError(f"no response{at} within {seconds:g} seconds")
        try:
            return task.result()
        except httpx2.ConnectError as error:
            raise UnreachableError(self.without_key(f"it cannot be reached ({error})")) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise RequestError(self.without_key(f"{type(error).__name__} {error}{at}")) from None

    async def attempt_to_read(self, *request: Any) -> bytes:
        """Sends a request that changes nothing, and once more if its connection ends.

        uvicorn closes a connection behind an internal error, which the next request may meet.
        """
        try:
            return await self.attempt(*request)
        except (httpx2.ReadError, httpx2.RemoteProtocolError):
            return await self.attempt(*request)

    async def attempt(self, method: str, path: str, content: bytes) -> bytes:
        headers = {"Content-Type": "application/json"} if content else {}
        at = f" at {path}" if path else ""
        received = bytearray()
        url = self.url.rstrip("/") + path if path else self.url
        async with self.opened().stream(method, url, content=content, headers=headers) as response:
            async for part in response.aiter_bytes():
                received += part
                if len(received) > self.largest_response:
                    limit = self.largest_response >> 20
                    raise InvalidResponseError(f"a response{at} over {limit} MiB", transient=False)
        status = response.status_code
        if 200 <= status < 300:
            return bytes(received)
        message = error_message(bytes(received))
        reason = self.without_key(f"HTTP {status}{at}{': ' if at else ' '}{message}")
        if status in TRANSIENT:
            seconds = retry_after(response.headers.get("Retry-After", ""))
            raise RequestError(reason, retry_after=seconds)
        raise RefusedError(reason, status)

    def opened(self) -> httpx2.AsyncClient:
        """Returns the HTTP client, which is made with the first request."""
        if self.http is None:
            most = self.connections
            limits = httpx2.Limits(
                max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEPT
            )
            try:
                self.http = httpx2.AsyncClient(
                    headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
                    limits=limits,
                    timeout=None,  # `send` has the deadline
                    follow_redirects=False,
                    trust_env=not is_loopback(self.url),  # proxies
                )
            except (ValueError, ImportError, httpx2.InvalidURL):
                raise InputError(  # the value may hold a password, so it is not repeated
                    "A proxy in the environment cannot be used: HTTP_PROXY, HTTPS_PROXY and "
                    "ALL_PROXY must be like http://HOST:PORT. NO_PROXY=HOST names servers to reach "
                    "directly."
                ) from None
        return self.http

    def forget(self, task: asyncio.Task) -> None:
        """Removes a finished request, and retrieves its error, for which nobody may wait."""
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def without_key(self, text: str) -> str:
        """Returns the beginning of a text as one printable line, with [key] in place of the key."""
        text = text.replace(self.key, "[key]") if self.key else text
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return line[:LONGEST_MESSAGE]

    async def aclose(self) -> None:
        """Cancels all requests and closes the connections."""
        tasks = list(self.tasks)
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.http is not None:
            await self.http.aclose()
            self.http = None


async def for_each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, concurrency: int
) -> None:
    """Awaits `work(item)` for every item, `concurrency` at a time; an error cancels the others."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    tasks = [asyncio.create_task(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def read_json(content: bytes) -> Any:
    """Returns the JSON value of a response."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidResponseError(f"a response that is no JSON ({error})") from None


def error_message(content: bytes) -> str:
    """Returns the message in the body of an error, or the beginning of the body."""
    text = content[:2000].decode(errors="replace")
    try:
        error = json.loads(content)
        error = error.get("error", error)
        message = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        return text
    return message if isinstance(message, str) else text


def retry_after(value: str) -> float:
    """Returns the seconds in a Retry-After header, a number or a date; 0 if it has neither."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


def pause(
    failures: int,
    retry_after: float = 0.0,
    *,
    first: float | None = None,
    longest: float = LONGEST_PAUSE,
) -> float:
    """Returns the seconds before the next attempt.

        retry_after + u min(first 2^(failures - 1), longest),   u uniform in [0.5, 1.5]

    Args:
      failures: the number of attempts that have failed, at least 1.
      first: the pause after the first failure; None is `FIRST_PAUSE`.
    """
    first = FIRST_PAUSE if first is None else first
    return retry_after + min(first * 2 ** min(failures - 1, 20), longest) * random.uniform(0.5, 1.5)


def is_loopback(url: str) -> bool:
    """Returns whether an address is one of this machine, which a proxy could not reach."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
