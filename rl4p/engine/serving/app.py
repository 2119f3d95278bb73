"""The ASGI application: it routes requests to their endpoints and sends the responses."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

from rl4p.engine.serving.chat import chat_completions
from rl4p.engine.serving.completions import completions
from rl4p.engine.serving.guard import Guard
from rl4p.engine.serving.http_errors import ClientDisconnectError, HttpError
from rl4p.engine.serving.http_request import HttpRequest
from rl4p.engine.serving.responses import EventStream, JsonResponse, TextResponse, encoded, event
from rl4p.engine.serving.server_state import ServerState

log = logging.getLogger(__name__)

BODY_SECONDS = 60.0
JSON = b"application/json"

Handler = Callable[[HttpRequest], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class App:
    """The application. It has no middleware, since clients and the decoding share the processor.

    Args:
      most_bytes: the longest body.
    """

    def __init__(self, server: ServerState, guard: Guard, *, most_bytes: int) -> None:
        self.server, self.guard, self.most_bytes = server, guard, most_bytes
        self.created = int(time.time())
        self.routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/completions"): completions,
            ("POST", "/v1/chat/completions"): chat_completions,
            ("GET", "/v1/models"): self.models,
        }

    @cached_property
    def paths(self) -> set[str]:
        return {path for _, path in self.routes}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        try:
            handler = self.handler(method, path)
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

    def handler(self, method: str, path: str) -> Callable[[HttpRequest], Awaitable[Any]]:
        """Returns the handler of an endpoint."""
        handler = self.routes.get((method, path))
        if handler is not None:
            return handler
        if path in self.paths:
            raise HttpError(f"{path} does not take {method}.", status=405)
        raise HttpError(f"{path} does not exist.", status=404)

    async def content(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        """Receives the body of a request."""
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
        """Lists the one model that is server."""
        server = self.server
        model = {
            "id": server.name,
            "object": "model",
            "created": self.created,
            "owned_by": "rl4p",
            "root": server.source,
            "max_model_len": server.positions,
            "weight_version": server.scheduler.version,
        }
        return JsonResponse({"object": "list", "data": [model]})


async def send_response(response: JsonResponse | TextResponse | EventStream, send: Send) -> int:
    """Sends a response, and returns its status."""
    if isinstance(response, EventStream):
        return await send_stream(response, send)
    if isinstance(response, JsonResponse):
        content, kind, status = encoded(response.value), JSON, response.status
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


async def send_stream(response: EventStream, send: Send) -> int:
    """Sends events as they come; an error among them is an event too."""
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
