"""The options and the protocol of rollouts whose tokens are drawn by servers."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import jax
import numpy as np

from rl4p.configuration.bounds import AboveZero, Natural, NonNegative, Positive, TopShare
from rl4p.distributed.processes import to_host
from rl4p.errors import InputError
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Request
from rl4p.rollout.annealing.linear import Linear
from rl4p.rollout.answers import answers
from rl4p.rollout.remote.engine import RemoteEngine
from rl4p.rollout.remote.fleet import Weights
from rl4p.rollout.remote.read import Answer, Ask, LieError
from rl4p.rollout.remote.server import Deadline, Server
from rl4p.rollout.sampler import sequence_keys
from rl4p.types import Array, Episode, Params, Prompt, Sampling, Trajectories


class Opened:
    """The engine that the calls of a rollout share; it is no option."""

    engine: RemoteEngine | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteSampler(ABC):
    """A rollout that asks servers for one completion at a time, each with a seed of its own.

    A subclass implements the protocol of its servers. A server that cannot be reached, is too slow
    or gives an answer that cannot be true is taken out, and others get its requests. It takes part
    again once it is healthy, and has the current weights if it receives them.

    Attributes:
      servers: the addresses of the servers, such as http://127.0.0.1:8000, without a path.
      max_response_tokens: the longest response in tokens, the end token included.
      temperature, top_p: the sampling distribution (`types.Sampling`).
      concurrency: the requests at a time to each server.
      timeout_seconds: the deadline of a request, from its start to the last byte of the answer.
      attempts: how often a request may fail before the run ends.
      patience: the run ends once no server could be used for so many seconds.
      health_seconds: the seconds between two checks whether a server is healthy.
      key_variable: the environment variable with the API key of the servers; None sends no key.
    """

    seed_bits: ClassVar[int] = 63
    receives_weights: ClassVar[bool] = False
    health_path: ClassVar[str] = "/health"

    servers: tuple[str, ...]
    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    top_p: TopShare = 1.0
    concurrency: Positive = 64
    timeout_seconds: AboveZero = 600.0
    attempts: Positive = 10
    patience: AboveZero = 300.0
    health_seconds: AboveZero = 5.0
    key_variable: str | None = None
    opened: Opened = field(default_factory=Opened, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("servers is empty: name at least one, such as [http://HOST:PORT].")
        for url in self.servers:
            check_address(url)
        if len({url.rstrip("/") for url in self.servers}) < len(self.servers):
            raise ValueError("servers names an address twice: name each once.")
        name = self.key_variable
        if name is not None and not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(  # it may be the key itself, so it is not repeated
                "key_variable is not the name of an environment variable: write the name, such as "
                "SERVER_API_KEY, not the key."
            )

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p)

    @property
    def key(self) -> str:
        """Returns the API key. It is no attribute, so that it is not printed or saved.

        Raises:
          InputError: the environment variable is not set.
        """
        if self.key_variable is None:
            return ""
        if not (key := os.environ.get(self.key_variable)):
            raise InputError(
                f"rollout.key_variable={self.key_variable}: this environment variable is not set."
            )
        return key

    def temperature_at(self, step: int) -> float | None:
        """Returns the temperature of a step if it changes over the run, otherwise None."""
        return None

    def open(self, policy: Policy) -> RemoteEngine:
        """Returns the engine; `publish` gives it its first weights.

        Raises:
          InputError: the run has several processes, or devices for sampling.
        """
        if policy.mesh.sampling is not policy.mesh:
            raise InputError(
                "mesh.rollout_devices would have no effect, because servers draw the tokens: leave "
                "it out."
            )
        if jax.process_count() > 1:
            raise InputError(
                f"rollout={type(self).__name__.lower()} needs a run of one process, but this one "
                f"has {jax.process_count()}: choose rollout=continuous, or leave mesh.processes "
                "out."
            )
        return RemoteEngine(self, policy)

    def __call__(
        self,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[Trajectories, Sequence[Episode]]:
        engine, limit = self.engine_of(policy), self.max_response_tokens
        engine.publish(params, version)
        keys_P = np.split(to_host(sequence_keys(key, len(prompts) * group_size)), len(prompts))
        requests = [
            Request(
                tokens=prompt.tokens,
                keys_N=keys_N,
                max_tokens=limit,
                messages=prompt.prompt_messages(),
            )
            for prompt, keys_N in zip(prompts, keys_P, strict=True)
        ]
        return answers(policy, prompts, engine.complete(requests, greedy=greedy), limit)

    def engine_of(self, policy: Policy) -> RemoteEngine:
        """Returns the engine that all calls share, until `close`."""
        if self.opened.engine is None or self.opened.engine.policy is not policy:
            self.close()
            self.opened.engine = self.open(policy)
        return self.opened.engine

    def close(self) -> None:
        """Ends the engine of the calls; another call opens it again."""
        if self.opened.engine is not None:
            self.opened.engine.close()
            self.opened.engine = None

    async def check_in(self, server: Server, deadline: Deadline) -> None:
        """Checks that a server is healthy, and finds out what it is."""
        await server.ask("GET", self.health_path, seconds=deadline.left)

    @abstractmethod
    async def complete(self, server: Server, ask: Ask, id: str, label: str) -> Answer:
        """Sends a request and returns its answer, which is checked.

        Args:
          id: a name for the request.
          label: the label of the weights that have to draw the tokens.

        Raises:
          LieError: the answer cannot be true.
          FailedError, RefusedError: there is no answer.
        """


@dataclass(frozen=True, kw_only=True)
class SyncedSampler(RemoteSampler):
    """A rollout whose servers receive the weights of the run, and prove that they use them.

    New weights are written into a folder that the servers can read. Each server stops, loads them,
    empties its caches and goes on. It then must report the new version, if it reports any, the
    checksums of the tensors, if it has comparable ones, and, always, the log-probabilities that the
    trainer computes for a fixed sequence.

    Attributes:
      annealing: the change of the temperature over the steps of a run; None for none.
      top_k: the tokens that may be drawn, the most probable ones; 0 for all.
      weights_folder: the folder for weights, at a path that the servers can read; None for a
        temporary one of this machine.
      update_seconds: the deadline of a server for new weights.
      max_probe_gap: the largest error of a log-probability of the fixed sequence; servers that
        compute in bfloat16 need 0.1 or more. None accepts any, unless the old weights fit better.
      max_logprob_gap: the run ends if `rollout/logprob_gap_mean` of a step is larger; None never
        ends it.
    """

    receives_weights: ClassVar[bool] = True

    annealing: Linear | None = None
    top_k: Natural = 0
    weights_folder: str | None = None
    update_seconds: AboveZero = 600.0
    max_probe_gap: AboveZero | None = 0.25
    max_logprob_gap: AboveZero | None = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.annealing is not None and self.temperature == 0:
            raise ValueError("annealing needs a temperature above 0 to begin with.")

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def temperature_at(self, step: int) -> float | None:
        return None if self.annealing is None else self.annealing(self.temperature, step)

    @abstractmethod
    async def abort(self, server: Server, ids: Sequence[str]) -> None:
        """Makes a server answer requests with the tokens so far."""

    @abstractmethod
    async def update(self, server: Server, weights: Weights, deadline: Deadline) -> None:
        """Gives a server new weights and checks what it says about them; it then takes requests.

        Raises:
          LieError: it does not say that it has them.
          FailedError, RefusedError: a step failed.
        """

    @abstractmethod
    async def score(
        self, server: Server, tokens: Sequence[int], deadline: Deadline
    ) -> list[float | None]:
        """Returns log p(token t | tokens before t) of tokens 1 to n - 1, at temperature 1."""

    async def check_checksums(
        self, server: Server, path: str, weights: Weights, deadline: Deadline
    ) -> None:
        """Compares the checksums of tensors at a path of a server, if it has comparable ones.

        A server that splits or joins tensors has names of its own; it is not asked again.

        Raises:
          LieError: a tensor differs.
        """
        if weights.exported is None or not server.known.get("checksums", True):
            return
        _, found = await server.offered("POST", path, {"action": "checksum"}, seconds=deadline.left)
        sums: Any = found.get("checksums") if isinstance(found, dict) else {}
        expected = None
        if isinstance(sums, dict) and sums.keys() == weights.exported.checksums.keys():
            expected = weights.exported.checksums
        server.known["checksums"] = expected is not None
        for name, digest in (expected or {}).items():
            if sums[name] != digest:
                raise LieError(
                    f"its checksum of {name} is not that of {weights.label}: it has other weights, "
                    "or holds them in another dtype than the run"
                )


def check_address(url: str) -> None:
    """Checks the address of a server.

    Raises:
      ValueError: it is none, or it has a password, which would be saved.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"servers has {url}, which is no address: write http://HOST:PORT.")
    if parts.username or parts.password:
        raise ValueError(
            "servers has a user name or a password, which would be saved: put an API key into an "
            "environment variable and name that with key_variable=NAME."
        )
    if parts.query or parts.fragment or parts.path.rstrip("/").endswith("/v1"):
        raise ValueError(f"servers has {url}: leave out /v1, and everything after it.")
