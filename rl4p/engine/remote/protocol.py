"""The servers of a rollout or a teacher: their options, state, and the protocol of their kind."""

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from rl4p.base.address import check_address, check_key_variable
from rl4p.base.http import HttpClient, InvalidResponseError, RefusedError, pause, read_json
from rl4p.base.types import Finish, Sampling
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.configuration.capability import Address, Variable
from rl4p.engine.remote.weights import Exported, Probe
from rl4p.protocols.engine import Completion

GREEDY = Sampling(temperature=0.0)
LARGEST_LOGPROB = 1e-3  # rounding of a server may put a log-probability this far above 0

FIRST_PAUSE = 0.1  # seconds; another server can take a request at once
LONGEST_PAUSE = 10.0
short_pause = partial(pause, first=FIRST_PAUSE, longest=LONGEST_PAUSE)


@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """A request for one completion.

    Attributes:
      tokens: the context.
      seed: a number of `seed_bits` bits, from which the server draws.
      max_tokens: the most tokens, the end token included.
      sampling: the distribution; temperature 0 is the argmax.
      end_ids: the tokens that end a completion.
      vocabulary: the number of token ids.
      version: the weight version of the completion; -1 if no policy draws it.
      label: the label of the weights that have to draw the tokens.
      messages: the conversation of the context, for chat servers; None if it is not known.
      tokenizer: tokenizes the texts of servers that return no tokens.
    """

    tokens: Sequence[int]
    seed: int = 0
    max_tokens: int = 1
    sampling: Sampling = GREEDY
    end_ids: Sequence[int] = ()
    vocabulary: int = 0
    version: int = -1
    label: str = ""
    messages: Sequence[Mapping[str, Any]] | None = None
    tokenizer: Any = None

    def completion(
        self, engine: str, tokens: Sequence[int], logprobs: Sequence[float], finish: Finish
    ) -> Completion:
        """Returns the completion that a server drew; rounding above 0 becomes 0."""
        return Completion(
            tokens=np.array(tokens, np.int32),
            logprobs=np.minimum(np.array(logprobs, np.float32), 0),
            versions=np.full(len(tokens), self.version, np.int32),
            finish=finish,
            engine=engine,
        )


def seed_of(key: np.ndarray, drawn: int, bits: int) -> int:
    """Returns the seed of a completion: a hash of its key data and of the tokens drawn before.

    A continued response gets another seed, since a server counts tokens from the start of its own
    completion and would draw with the same random numbers again.
    """
    words = np.asarray(key, np.uint32).tobytes() + np.uint32(drawn).tobytes()
    digest = hashlib.sha256(words).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits)


def checked(
    request: ServerRequest,
    engine: str,
    tokens: Any,
    logprobs: Any,
    reason: Any,
    *,
    versions: Sequence[Any] = (),
) -> Completion:
    """Returns the completion in a response, if it can be correct.

    Args:
      engine: the address of the server.
      tokens, logprobs: the token ids and their log-probabilities.
      reason: why the completion ended: stop, length or abort. `Finish.ABORT` is a fragment.
      versions: the labels of the weights that drew the tokens, as far as the server reports them.

    Raises:
      InvalidResponseError: anything is wrong.
    """
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        raise InvalidResponseError("tokens or log-probabilities are no list")
    if len(tokens) != len(logprobs):
        raise InvalidResponseError(f"{len(tokens)} tokens, but {len(logprobs)} log-probabilities")
    for token in tokens:
        if type(token) is not int or not 0 <= token < request.vocabulary:
            raise InvalidResponseError(f"{token!r} is no token id below {request.vocabulary}")
    for logprob in logprobs:
        value = number(logprob)
        if value is None or not -float("inf") < value <= LARGEST_LOGPROB:
            raise InvalidResponseError(f"{logprob!r} is no log-probability")
    if wrong := [x for x in versions if x != request.label]:
        raise InvalidResponseError(
            f"tokens of the weights {wrong[0]!r}, but the current ones are {request.label!r}"
        )
    if len(tokens) > request.max_tokens:
        raise InvalidResponseError(f"{len(tokens)} tokens, but max_tokens={request.max_tokens}")
    if any(token in request.end_ids for token in tokens[:-1]):
        raise InvalidResponseError("an end token before the end")
    finish = Finish.ABORT if reason == "abort" else Finish.LENGTH
    if reason != "abort":  # does the reason fit the tokens?
        if not tokens:
            raise InvalidResponseError("no tokens")
        if tokens[-1] in request.end_ids:
            finish = Finish.STOP
        elif reason == "stop":
            wrong = f"it stopped at the token {tokens[-1]}, which is no end token"
            raise InvalidResponseError(wrong)
        if reason == "length" and len(tokens) < request.max_tokens:
            raise InvalidResponseError(
                f"it ended for its length of {len(tokens)}, below {request.max_tokens}"
            )
        if reason not in ("stop", "length"):
            raise InvalidResponseError(f"it ended for the reason {reason!r}")
    return request.completion(engine, tokens, logprobs, finish)


def value_at(value: Any, *path: str | int) -> Any:
    """Returns the value at a path in nested mappings and lists.

    Raises:
      InvalidResponseError: there is no such place.
    """
    for step in path:
        try:
            value = value[step]
        except (TypeError, LookupError):
            raise InvalidResponseError(f"no {'.'.join(map(str, path))}") from None
    return value


def only_choice(value: Any) -> Any:
    """Returns the single completion of a response that has a list of `choices`."""
    choices = value_at(value, "choices")
    if not isinstance(choices, list) or len(choices) != 1:
        count = len(choices) if isinstance(choices, list) else type(choices).__name__
        raise InvalidResponseError(f"{count} completions, but 1 was requested")
    return choices[0]


def number(value: Any) -> float | None:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return float(value)
    return None


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """The servers of a rollout or a teacher, and how requests are sent to them.

    Attributes:
      group: the key of these options in the configuration, which errors name.
      servers: the addresses of the servers, such as http://127.0.0.1:8000, without a path.
      concurrency: the requests at a time to each server.
      timeout_seconds: the deadline of a request, from its start to the last byte of the response.
      attempts: how often a request may fail before the run ends.
      patience: the run ends once no server could be used for so many seconds.
      health_seconds: the seconds between two checks whether a server is healthy.
      key_variable: the environment variable with the API key of the servers; None sends no key.
    """

    group: ClassVar[str] = "rollout"

    servers: tuple[Address, ...]
    concurrency: Positive = 64
    timeout_seconds: AboveZero = 600.0
    attempts: Positive = 10
    patience: AboveZero = 300.0
    health_seconds: AboveZero = 5.0
    key_variable: Variable | None = None

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("servers is empty: name at least one, such as [http://HOST:PORT].")
        for url in self.servers:
            check_address(url, "servers", example="http://HOST:PORT")
            if "?" in url or "#" in url or url.rstrip("/").endswith("/v1"):
                raise ValueError(f"servers has {url}: leave out /v1, and everything after it.")
        if len({url.rstrip("/") for url in self.servers}) < len(self.servers):
            raise ValueError("servers names an address twice: name each once.")
        check_key_variable(self.key_variable)


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


@dataclass(eq=False, kw_only=True)
class RemoteServer:
    """A server of a pool. A request has one attempt here; the pool sends it again.

    Attributes:
      client: its connections.
      healthy: whether it gets requests; it has the current weights then.
      reason: why it was taken out last.
      announced: whether the log says that it is taken out.
      running: the tasks of the completions that it is drawing.
      failures: the number of failures since the last completion.
      features: facts about this server that its protocol has learned.
      previous: the log-probabilities of the probe under the weights that it had before.
      rounding: its largest gap of the probe under the first weights that it had.
      probed: its last log-probabilities of the probe.
      refusals: how often it could not be let in, one after another, for what no waiting changes.
      asleep: whether it has given its memory back, so that it has no weights.
    """

    client: HttpClient
    healthy: bool = False
    reason: str = "it was not checked yet"
    announced: bool = False
    running: set[Any] = field(default_factory=set)
    failures: int = 0
    features: dict[str, Any] = field(default_factory=dict)
    previous: np.ndarray | None = None
    rounding: float | None = None
    probed: Sequence[float | None] = ()
    refusals: int = 0
    asleep: bool = False

    @property
    def url(self) -> str:
        return self.client.url

    async def send(self, method: str, path: str, body: Any = None, *, seconds: float) -> Any:
        """Sends a request, and returns the JSON value of its response, or its text.

        Raises:
          RequestError: there is no usable response.
        """
        content = await self.client.send(method, path, body, seconds=seconds)
        try:
            return read_json(content)
        except InvalidResponseError:
            return content.decode(errors="replace")

    async def offered(
        self, method: str, path: str, body: Any = None, *, seconds: float
    ) -> tuple[bool, Any]:
        """Returns whether the server has such a path, and its response if it has."""
        if self.features.get(path) is False:
            return False, None
        try:
            return True, await self.send(method, path, body, seconds=seconds)
        except RefusedError as error:
            if error.status not in (404, 405):
                raise
            self.features[path] = False
            return False, None


@dataclass(frozen=True, eq=False, kw_only=True)
class Weights:
    """The weights of an engine.

    Attributes:
      version: the step that they come from.
      label: their name at the servers, which no other weights have.
    """

    version: int
    label: str


@dataclass(frozen=True, eq=False, kw_only=True)
class NewWeights(Weights):
    """Weights that the servers have to load.

    Attributes:
      exported: the folder with them.
      probe, expected: the probe, and its log-probabilities under these weights.
      seconds: the deadline of a server to load them.
    """

    exported: Exported
    probe: Probe
    expected: np.ndarray
    seconds: float


class ServerProtocol(ABC):
    """The HTTP protocol of a kind of server.

    Attributes:
      seed_bits: the number of bits of a request's seed.
      health_path: a path that a healthy server answers.
    """

    seed_bits: ClassVar[int] = 63
    health_path: ClassVar[str] = "/health"

    async def check(self, server: RemoteServer, deadline: Deadline) -> None:
        """Checks that a server is healthy, and learns its features."""
        await server.send("GET", self.health_path, seconds=deadline.left)

    @abstractmethod
    async def complete(
        self, server: RemoteServer, request: ServerRequest, id: str, *, seconds: float
    ) -> Completion:
        """Sends a request and returns its completion, which is checked.

        Args:
          id: a name for this attempt.
          seconds: the deadline.

        Raises:
          InvalidResponseError: the response cannot be correct.
          RequestError: there is no usable response.
        """


class WeightsProtocol(ServerProtocol):
    """The protocol of a kind of server that loads weights."""

    @abstractmethod
    async def abort(self, server: RemoteServer, ids: Sequence[str]) -> None:
        """Makes a server respond to requests with the tokens so far."""

    @abstractmethod
    async def load(self, server: RemoteServer, weights: NewWeights, deadline: Deadline) -> None:
        """Makes a server load weights and checks what it reports; it then accepts requests.

        Raises:
          InvalidResponseError: the server reports other weights.
          RequestError: a step failed.
        """

    @abstractmethod
    async def sleep(self, server: RemoteServer, deadline: Deadline) -> None:
        """Makes an idle server give its memory back, of the weights and of the cache.

        Raises:
          RequestError: it did not, or offers no way to do so.
        """

    @abstractmethod
    async def wake(self, server: RemoteServer, deadline: Deadline) -> None:
        """Makes a server take its memory again. It then needs weights (`load`).

        Raises:
          RequestError: it did not.
        """

    @abstractmethod
    async def score(
        self, server: RemoteServer, tokens: Sequence[int], deadline: Deadline
    ) -> list[float | None]:
        """Returns log p(token t | tokens before t) of tokens 1 to n - 1, at temperature 1.

        The server draws `least_tokens` of its features behind them, by default 1.
        """


async def check_checksums(
    server: RemoteServer, path: str, weights: NewWeights, deadline: Deadline
) -> None:
    """Compares the checksums of tensors at a path of a server, if it has comparable ones.

    A server that splits or joins tensors has other names for them; its checksums are not requested
    again.

    Raises:
      InvalidResponseError: a tensor differs.
    """
    if not server.features.get("checksums", True):
        return
    body = {"action": "checksum"}
    if server.features.get("crc32", True):  # rl4p.serve has it
        body["algorithm"] = "crc32"
    try:
        _, response = await server.offered("POST", path, body, seconds=deadline.left)
    except RefusedError as error:
        if error.status not in (400, 422) or "algorithm" not in body:
            raise
        server.features["crc32"] = False
        await check_checksums(server, path, weights, deadline)
        return
    found = response if isinstance(response, dict) else {}
    checksums, expected = found.get("checksums"), weights.exported.checksums
    if not isinstance(checksums, dict) or checksums.keys() != expected.keys():
        server.features["checksums"] = False
        return
    if found.get("algorithm") != "crc32":
        expected = await asyncio.to_thread(weights.exported.sha256)
    for name, checksum in expected.items():
        if checksums[name] != checksum:
            raise InvalidResponseError(
                f"its checksum of {name} differs from {weights.label}: it has other weights, or "
                "holds them in another dtype than the run"
            )
