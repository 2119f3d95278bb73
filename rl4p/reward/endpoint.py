"""Requests to a grading server over HTTP: many at a time, with retries, to one address only.

`rl4p/base/http.py` says which failures are tried again. Any other is final. A wrong address
or key stops the run, as does a redirect.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rl4p.base.address import api_key, check_address, check_key_variable
from rl4p.base.errors import RunError
from rl4p.base.http import HttpClient, RefusedError, RequestError, for_each, read_json
from rl4p.distributed.counting import item_done

Result = TypeVar("Result")

MOST_FAILURES = 8  # in a row, of different requests; then the server counts as down


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """The result of a request that failed for good."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address that answers POST requests of JSON.

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
        check_address(self.url, "url", example="http://HOST:PORT/PATH")
        check_key_variable(self.key_variable)
        api_key(self.key_variable)

    def send(
        self, bodies: Sequence[Mapping[str, Any]], read: Callable[[int, Any], Result]
    ) -> list[Result | NoAnswer]:
        """Sends a request for each body, and returns the result of `read` for each, in order.

        Args:
          read: called with the index of the body and the JSON value of its response; it raises
            `InvalidResponseError` if the response cannot be used.

        Raises:
          RunError: the address or the key is wrong.
        """
        return asyncio.run(self.send_all(bodies, read))

    async def send_all(
        self, bodies: Sequence[Mapping[str, Any]], read: Callable[[int, Any], Result]
    ) -> list[Result | NoAnswer]:
        results: list[Result | NoAnswer] = [NoAnswer(reason="it was not sent")] * len(bodies)
        failures = 0
        client = HttpClient(
            url=self.url, key=api_key(self.key_variable), connections=self.concurrency
        )

        async def send_one(index: int) -> None:
            nonlocal failures
            if failures >= MOST_FAILURES:
                results[index] = NoAnswer(
                    reason=f"it was not sent, since {failures} others in a row had failed"
                )
                return
            try:
                results[index] = await client.retry(
                    "POST",
                    "",
                    bodies[index],
                    lambda content: read(index, read_json(content)),
                    seconds=self.timeout_seconds,
                    attempts=self.attempts,
                )
                failures = 0
            except RequestError as error:
                hint = error.hint("key_variable") if isinstance(error, RefusedError) else None
                if hint is not None:
                    raise RunError(f"{self.url}: {error} ({hint}).") from None
                results[index] = NoAnswer(reason=str(error))
                failures += 1
            item_done()

        async with client:
            await for_each(range(len(bodies)), send_one, concurrency=self.concurrency)
        return results
