"""The model that is served, and the ASGI application, which routes requests to its endpoints."""

import asyncio
import hmac
import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel

from rl4p.base.types import Sampling
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.serving.active_request import ActiveRequest, Choice, CompletionOptions, ReadyQueue
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
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.engine.serving.wishes import Wishes
from rl4p.model.policy import Policy

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health",)  # paths that need no token

MOST_DIRECT = 65536  # bytes; a longer body is read in a thread, which costs more than to read it

log = logging.getLogger(__name__)

BODY_SECONDS = 60.0

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]
SEEDS = 2**63
# Random numbers of the operating system would release the interpreter to another thread.
RANDOM = random.Random()
ANSWER_BYTES = 2**26  # of a response
TOKEN_BYTES = 48  # of a token in a response, about: its id, its text and its log-probability


@dataclass(kw_only=True)
class ServedModel(ABC):
    """A policy behind an address, and the requests that it serves.

    Attributes:
      name: the name of the model in requests.
      source: the folder or the class of the weights.
      address: the URL of the server.
      waiting: the most completions that wait for a slot.
      add_prompting: returns the messages of a chat request with the prompts of a data set added.
      open: the completions and scored prompts that run or wait.
      wishes: how fields are taken that are not enforced; None refuses them.
    """

    policy: Policy
    detokenizer: Detokenizer
    queue: ReadyQueue
    name: str
    source: str
    address: str
    slots: int
    waiting: int
    add_prompting: Callable[[list[Mapping[str, Any]]], list[Mapping[str, Any]]] = list
    open: int = 0
    disconnects: int = 0  # clients that closed the connection before their response
    closing: bool = False
    rids: dict[str, ActiveRequest] = field(default_factory=dict)  # by SGLang's request id
    responses: dict[tuple[str, int], int] = field(default_factory=dict)  # by path and status
    wishes: Wishes | None = None
    items: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # of `/v1/responses`

    @property
    def positions(self) -> int:
        return self.policy.decoder.config.max_positions

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise HttpError(
                f"The model {name} is not served here: write {self.name}.",
                status=404,
                param="model",
                code="model_not_found",
            )

    def check_room(self, count: int) -> None:
        """Refuses a request if too many completions run or wait already."""
        if self.closing:
            raise HttpError("The server is shutting down.", status=503)
        if count > self.slots + self.waiting:
            raise HttpError(
                f"The request asks for {count} completions, but the server takes "
                f"{self.slots + self.waiting} at a time."
            )
        if self.open + count > self.slots + self.waiting:
            raise HttpError(
                f"{self.open} completions are running or waiting: try again later.", status=429
            )

    def check_prompt(self, tokens: Sequence[int], max_tokens: int, param: str) -> None:
        """Refuses a prompt that is empty, too long, or has tokens outside the vocabulary."""
        if not tokens:
            raise HttpError("The prompt is empty: it needs at least one token.", param=param)
        if len(tokens) + max_tokens > self.positions:
            raise HttpError(
                f"A prompt of {len(tokens)} tokens with at most {max_tokens} new tokens is longer "
                f"than the {self.positions} positions of the model.",
                param=param,
                code="context_length_exceeded",
            )
        self.check_tokens(tokens, param)

    def check_tokens(self, tokens: Sequence[int], param: str) -> None:
        most = self.policy.decoder.config.vocabulary - 1
        if tokens and max(tokens) > most:
            raise HttpError(f"{param} must be a list of token ids from 0 to {most}.", param=param)

    @property
    @abstractmethod
    def version(self) -> str:
        """The weight version of tokens that are drawn from now on."""

    @abstractmethod
    def start(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
        scored: bool = False,
        unsent: Callable[[], int] = lambda: 0,
    ) -> ActiveRequest:
        """Starts a request; `ActiveRequest.disconnect` or its end frees its slots.

        Args:
          seeds: a seed for each completion of each prompt.
          scored: whether the log-probabilities of the prompts are computed too.
          unsent: returns the bytes of the response for which the client has no room.
        """

    def check_size(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        n: int,
        *,
        scored: bool,
        shown: bool,
    ) -> None:
        """Refuses a request for which there is no room, or whose response may be too long.

        Args:
          n: the number of completions of each prompt.
          scored: whether the log-probabilities of the prompts are computed.
          shown: whether each completion has the tokens of its prompt beside it.
        """
        count = len(prompts) * n
        self.check_room(count * (options.max_tokens > 0) + scored * len(prompts))
        tokens = sum(map(len, prompts)) * n * shown
        tokens += count * options.max_tokens * (1 + (options.alternatives or 0))
        if (size := TOKEN_BYTES * tokens) > ANSWER_BYTES:
            raise HttpError(
                f"The response may have {size >> 20} MiB, and at most {ANSWER_BYTES >> 20} MiB are "
                "sent: request fewer completions, tokens or log-probabilities at a time."
            )

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the most tokens of a completion that names no limit."""
        return max(self.positions - len(prompt), 1)

    def sampling_of(self, request: BaseModel, sampling: Sampling) -> Sampling:
        """Returns the distribution of the tokens of a request.

        Args:
          sampling: the distribution that the fields of the request name, or their defaults.
        """
        return sampling

    def as_sampled(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Returns the messages of a conversation as the chat template takes them."""
        return list(messages)

    def answered(  # noqa: B027
        self, choice: Choice, message: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
    ) -> None:
        """Receives the message that a client gets for a choice that has ended.

        Args:
          earlier: the conversation before it, as the client sent it.
        """

    def refused(self, error: HttpError) -> None:  # noqa: B027
        """Receives the error that a client gets."""

    def count(self, change: int) -> None:
        self.open += change

    def check_text(self, length: int, param: str) -> None:
        """Refuses a text that has too many tokens, however it is encoded."""
        if length > self.positions * self.detokenizer.longest:
            raise HttpError(
                f"A prompt of {length} characters is longer than the {self.positions} positions of "
                "the model.",
                param=param,
                code="context_length_exceeded",
            )

    async def encode(
        self,
        text: str,
        param: str,
        *,
        special: bool = True,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Returns the token ids of a prompt; a long one is encoded in a thread.

        Args:
          special: whether the tokenizer adds special tokens.
          messages: the messages that the chat template made the text of, if it did.
        """
        self.check_text(len(text), param)
        backend = self.detokenizer.backend
        if len(text) < 4096:
            return backend.encode(text, add_special_tokens=special).ids
        # `encode` would keep all other threads from running.
        encode = partial(backend.encode_batch_fast, [text], add_special_tokens=special)
        (encoding,) = await asyncio.to_thread(encode)
        return encoding.ids


@dataclass(kw_only=True)
class ServerState(ServedModel):
    """A policy whose scheduler serves all requests."""

    scheduler: Scheduler

    @property
    def version(self) -> str:
        return self.scheduler.version

    def start(
        self,
        options: CompletionOptions,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        stream: bool,
        scored: bool = False,
        unsent: Callable[[], int] = lambda: 0,
    ) -> ActiveRequest:
        active = ActiveRequest(
            self.queue, self.detokenizer, options, stream=stream, count=self.count, unsent=unsent
        )
        active.submit(self.scheduler, prompts, seeds, scored=scored)
        return active


def seeds_of(seed: int | None, prompts: int, n: int) -> list[list[int]]:
    """Returns a seed for each completion of each prompt: random, or counted from `seed`."""
    if seed is None:
        return [[RANDOM.getrandbits(63) for _ in range(n)] for _ in range(prompts)]
    return [[(seed + i) % SEEDS for i in range(n)]] * prompts


def new_id() -> str:
    return f"{RANDOM.getrandbits(96):024x}"


def or_null(logprob: float) -> float | None:
    """Returns a log-probability that JSON can hold: null for nan and the infinities."""
    return logprob if math.isfinite(logprob) else None


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
            return parse(model, self.content, self.server.wishes)
        return await asyncio.to_thread(parse, model, self.content, self.server.wishes)

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
            if method == "POST":  # others, such as a check of the address, ask for no tokens
                self.server.refused(error)
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
            "least_tokens": 0,  # of a completion
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
