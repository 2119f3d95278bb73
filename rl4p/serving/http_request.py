"""A request as an endpoint sees it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from rl4p.serving.active_request import ActiveRequest
from rl4p.serving.fields import Fields
from rl4p.serving.server_state import ServerState


@dataclass(kw_only=True)
class HttpRequest:
    """A request whose body has been read.

    Attributes:
      receive: gives the next message of the connection, which is that the client has gone.
      body: the JSON value of its body.
    """

    server: ServerState
    receive: Callable[[], Awaitable[Any]]
    query_string: bytes
    body: Any

    def fields(self) -> Fields:
        """Returns the fields of the body."""
        return Fields(self.body)

    def query(self) -> Fields:
        """Returns the fields after the question mark of the address."""
        pairs = dict(parse_qsl(self.query_string.decode("latin-1")))
        words = {"true": True, "false": False}
        return Fields({name: words.get(value, value) for name, value in pairs.items()})

    @asynccontextmanager
    async def watched(self, active: ActiveRequest) -> AsyncIterator[None]:
        """Frees the slots of a request when it ends, or when its client closes the connection."""
        count = len(active.choices)
        self.server.open += count

        async def watch() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass
            active.leave()

        watcher = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watcher.cancel()
            self.server.open -= count
            if active.growing:
                active.cancel()
