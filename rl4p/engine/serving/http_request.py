"""A request as an endpoint receives it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from rl4p.engine.serving.active_request import ActiveRequest
from rl4p.engine.serving.body import B, parse, validate
from rl4p.engine.serving.server_state import ServerState

MOST_DIRECT = 65536  # bytes; a longer body is read in a thread, which costs more than to read it


@dataclass(kw_only=True)
class HttpRequest:
    """A request whose content has arrived.

    Attributes:
      receive: returns the next event of the connection: that the client has closed it.
      content: the bytes of its body.
      unsent: returns the bytes of its response for which the client has no room.
    """

    server: ServerState
    receive: Callable[[], Awaitable[Any]]
    query_string: bytes
    content: bytes
    unsent: Callable[[], int] = lambda: 0

    async def body(self, model: type[B]) -> B:
        """Returns the fields of the body."""
        if len(self.content) < MOST_DIRECT:
            return parse(model, self.content)
        return await asyncio.to_thread(parse, model, self.content)

    def query(self, model: type[B]) -> B:
        """Returns the fields after the question mark of the URL."""
        pairs = dict(parse_qsl(self.query_string.decode("latin-1")))
        words = {"true": True, "false": False}
        return validate(model, {name: words.get(value, value) for name, value in pairs.items()})

    @asynccontextmanager
    async def watched(self, active: ActiveRequest) -> AsyncIterator[None]:
        """Frees the slots of a request when it ends, or when its client closes the connection."""

        async def watch() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass
            active.disconnect()

        watcher = asyncio.ensure_future(watch())
        try:
            yield
        finally:
            watcher.cancel()
            if active.unfinished:
                active.cancel()
