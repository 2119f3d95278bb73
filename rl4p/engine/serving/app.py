"""The ASGI application: it checks requests, routes them to their endpoints and sends responses."""

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rl4p.engine.serving.active_request import ActiveRequest
from rl4p.engine.serving.body import (
    B,
    ClientDisconnectError,
    EventStream,
    HttpError,
    JsonResponse,
    TextResponse,
    encoded,
    event,
    parse,
    validate,
)
from rl4p.engine.serving.server_state import ServedModel

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health",)  # paths that need no token

MOST_DIRECT = 65536  # bytes; a longer body is read in a thread, which costs more than to read it

log = logging.getLogger(__name__)

BODY_SECONDS = 60.0

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The check of each request.

    Without a token, a web page must not reach the server through the browser of this machine. So
    the Host header has to name this machine, and the Origin header has to agree with it.

    Attributes:
      token: None for no token.
    """

    token: str | None

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuses a request that must not be served."""
        if self.token is not None:
            if path in OPEN:
                return
            kind, _, token = headers.get(b"authorization", b"").partition(b" ")
            right = hmac.compare_digest(token.strip(), self.token.encode())
            if kind.lower() != b"bearer" or not right:
                raise HttpError(
                    "The token is missing or wrong: send the header Authorization: Bearer TOKEN.",
                    status=401,
                    code="invalid_api_key",
                )
            return
        host, name = headers.get(b"host", b"").decode("latin-1"), None
        with suppress(ValueError):  # it is no host
            name = urlsplit(f"//{host}").hostname
        if name not in LOOPBACK:
            raise HttpError(
                "The server has no token, so it answers only to localhost and 127.0.0.1.",
                status=403,
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").rpartition("//")[2] != host:
            raise HttpError("Pages of other sites must not use this server.", status=403)


@dataclass(kw_only=True)
class HttpRequest:
    """A request whose content has arrived.

    Attributes:
      receive: returns the next event of the connection: that the client has closed it.
      content: the bytes of its body.
      unsent: returns the bytes of its response for which the client has no room.
    """

    server: ServedModel
    receive: Callable[[], Awaitable[Any]]
    query_string: bytes
    content: bytes
    unsent: Callable[[], int] = lambda: 0

    async def body(self, model: type[B]) -> B:
        if len(self.content) < MOST_DIRECT:
            return parse(model, self.content)
        return await asyncio.to_thread(parse, model, self.content)

    def query(self, model: type[B]) -> B:
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


Handler = Callable[[HttpRequest], Awaitable[Any]]


class App:
    """The application. It has no middleware, since clients and the decoding share the processor.

    Args:
      most_bytes: the longest body.
      routes: the handlers of endpoints, beside that of /v1/models.
    """

    def __init__(
        self,
        server: ServedModel,
        guard: Guard,
        *,
        most_bytes: int,
        routes: Mapping[tuple[str, str], Handler],
    ) -> None:
        self.server, self.guard, self.most_bytes = server, guard, most_bytes
        self.created = int(time.time())
        self.routes = {("GET", "/v1/models"): self.models, **routes}
        self.paths = {path for _, path in self.routes}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        try:
            if path not in self.paths:
                raise HttpError(f"{path} does not exist.", status=404)
            if (handler := self.routes.get((method, path))) is None:
                raise HttpError(f"{path} does not take {method}.", status=405)
            headers = dict(scope["headers"])
            self.guard.check(path, headers)
            request = HttpRequest(
                server=self.server,
                receive=receive,
                query_string=scope["query_string"],
                content=await self.content(receive, headers),
                **scope.get("state", {}),  # of `Connection`
            )
            status = await send_response(await handler(request), send)
        except HttpError as error:
            status = await send_response(JsonResponse(error.body(), error.status), send)
        except ClientDisconnectError:
            self.server.disconnects += 1
            status = 499
        except Exception as error:  # an error of this program; other requests go on
            log.exception("The request to %s failed.", path)
            refusal = HttpError(f"{type(error).__name__}: see the server's log.", status=500)
            status = await send_response(JsonResponse(refusal.body(), 500), send)
        known = path if path in self.paths else "other"
        responses = self.server.responses
        responses[known, status] = responses.get((known, status), 0) + 1

    async def content(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        length = headers.get(b"content-length", b"0")
        parts: list[bytes] = []
        size = 0
        too_long = HttpError(f"The body is longer than {self.most_bytes // 2**20} MiB.", status=413)
        if len(length) > len(str(self.most_bytes)) or int(length) > self.most_bytes:
            raise too_long
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnectError
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.most_bytes:
                        raise too_long
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise HttpError(
                f"The body did not arrive within {BODY_SECONDS:.0f} seconds.", status=408
            ) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def models(self, request: HttpRequest) -> JsonResponse:
        server = self.server
        model = {
            "id": server.name,
            "object": "model",
            "created": self.created,
            "owned_by": "rl4p",
            "root": server.source,
            "max_model_len": server.positions,
            "weight_version": server.version,
        }
        return JsonResponse({"object": "list", "data": [model]})


async def send_response(response: JsonResponse | TextResponse | EventStream, send: Send) -> int:
    """Sends a response, and returns its status. Events are sent as they come, errors too."""
    if isinstance(response, EventStream):
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        status = 200
        try:
            async for chunk in response.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except HttpError as error:
            chunk, status = event(error.body()), error.status
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return status
    if isinstance(response, JsonResponse):
        content, kind, status = encoded(response.value), b"application/json", response.status
    else:
        content, kind, status = response.text.encode(), response.kind.encode(), 200
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
    if status == 401:
        headers += [(b"www-authenticate", b"Bearer"), (b"connection", b"close")]
    elif status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
    return status
