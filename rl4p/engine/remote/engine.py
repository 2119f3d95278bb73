"""The engine whose completions come from servers, and the servers that engines share."""

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeVar

import jax
import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish, Params, Sampling
from rl4p.distributed.counting import counted, newest
from rl4p.engine.remote.pool import RequestBatch, ServerPool
from rl4p.engine.remote.protocol import (
    GREEDY,
    NewWeights,
    PoolOptions,
    ServerProtocol,
    ServerRequest,
    Weights,
    seed_of,
)
from rl4p.engine.remote.weights import Probe, WeightsFolder
from rl4p.model.policy import Policy
from rl4p.protocols.engine import Completion, Request, RequestSource

Result = TypeVar("Result")

SECONDS_BETWEEN_STOPS = 0.05
SECONDS_BETWEEN_LOOKS = 0.01  # at the new requests of a source
SECONDS_TO_CLOSE = 10.0
LOCK = threading.Lock()
SHARED: "dict[tuple, SharedServers]" = {}  # by the class of a protocol and the servers


@dataclass(frozen=True, kw_only=True)
class WeightTransfer:
    """How the weights of an engine reach its servers.

    Attributes:
      folder: the folder for weights, which the engine deletes at its end.
      probe: the sequence whose log-probabilities show that a server has the weights.
      seconds: the deadline of a server to load weights.
    """

    folder: WeightsFolder
    probe: Probe
    seconds: float


class SharedServers:
    """The servers of a rollout in this process: a pool, its asyncio loop in a thread, and a lock.

    Several engines can use the same servers: a collector has one, and an evaluation with a moving
    average another. The servers have the weights of one engine at a time. A call of another engine
    waits until they are free, and first installs its own weights.
    """

    def __init__(self, options: PoolOptions, protocol: ServerProtocol) -> None:
        self.pool = ServerPool(options, protocol)
        self.users = 0
        self.condition = threading.Condition()
        self.installed: Weights | None = None
        self.installing = False
        self.calls = 0  # under way
        self.publishers = 0  # that wait
        self.loop = asyncio.new_event_loop()
        run = self.loop.run_forever
        self.thread = threading.Thread(target=run, name="rollout servers", daemon=True)
        self.thread.start()

    @classmethod
    def of(cls, options: PoolOptions, protocol: ServerProtocol) -> "SharedServers":
        """Returns the servers with these addresses; `release` closes them after their last user.

        Engines with the same servers also share the other options of the first engine.
        """
        key = type(protocol), options.servers
        with LOCK:
            if key not in SHARED:
                SHARED[key] = cls(options, protocol)
            SHARED[key].users += 1
            return SHARED[key]

    def release(self) -> None:
        """Ends the use by an engine, and closes the servers after the last one."""
        with LOCK:
            self.users -= 1
            if self.users:
                return
            SHARED.pop((type(self.pool.protocol), self.pool.options.servers), None)
        self.close()

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Holds the servers for one caller while the context is open.

        Stops the calls that can be stopped, and waits for the others. New calls wait until the
        context ends.
        """
        self.loop.call_soon_threadsafe(self.pool.stop)
        with self.condition:
            self.publishers += 1
            try:
                while self.installing or self.calls:
                    self.condition.wait()
                self.installing = True
            finally:
                self.publishers -= 1
                self.condition.notify_all()
        with self.installation():
            yield

    @contextmanager
    def using(self, weights_of: Callable[[], Weights]) -> Iterator[Weights]:
        """Keeps the weights of an engine installed; installs them again if another replaced them.

        Args:
          weights_of: returns the weights of the engine.
        """
        while True:
            with self.condition:
                while self.installing or self.publishers:
                    self.condition.wait()
                weights = weights_of()
                if self.installed is weights:
                    self.calls += 1
                    break
                if self.calls:
                    self.condition.wait()
                    continue
                self.installing = True
            with self.installation():
                self.install(weights)
        try:
            yield weights
        finally:
            with self.condition:
                self.calls -= 1
                self.condition.notify_all()

    @contextmanager
    def installation(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self.condition:
                self.installing = False
                self.condition.notify_all()

    def install(self, weights: Weights) -> None:
        """Gives the servers weights, during an installation."""
        self.installed = None
        future = self.start(self.pool.install(weights))
        try:
            future.result()
        finally:
            future.cancel()  # if this thread was interrupted
        self.installed = weights

    def sleep(self) -> None:
        with self.exclusive():
            if self.installed is None:
                return
            self.installed = None
            self.start(self.pool.release_memory()).result()

    def close(self) -> None:
        """Closes the connections and ends the thread."""
        if self.loop.is_closed():
            return
        closing = self.start(self.pool.close())
        closing.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        self.thread.join(timeout=SECONDS_TO_CLOSE)
        if not self.thread.is_alive():
            left = asyncio.all_tasks(self.loop)  # of requests that are under way
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=SECONDS_TO_CLOSE))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


@atexit.register
def close_all() -> None:
    for servers in list(SHARED.values()):
        servers.close()


class RemoteEngine:
    """An `Engine` whose tokens are drawn by the servers of a rollout.

    A completion has a seed of its own, which depends on its key only. It does not matter which
    server draws it, as far as the servers compute alike.

    `publish` returns once the servers have the new weights. Before, it waits for the calls under
    way, since all tokens of a call are of the same weights; calls with `stop` are stopped.

    Args:
      servers: the servers, which the engine releases at its end.
      sampling_at: returns the sampling distribution of a weight version.
      transfer: how weights reach the servers; None if they have weights of their own.
      sleeps: whether `free` makes the servers sleep.
    """

    def __init__(
        self,
        policy: Policy,
        servers: SharedServers,
        sampling_at: Callable[[int], Sampling],
        transfer: WeightTransfer | None,
        *,
        sleeps: bool = False,
    ) -> None:
        self.policy = policy
        self.servers: SharedServers | None = servers
        self.sampling_at = sampling_at
        self.transfer = transfer
        self.stops = transfer is not None
        self.sleeps = sleeps
        self.weights: Weights | None = None
        self.version = -1
        self.source: Sequence[weakref.ref] | None = None  # the published parameters

    def publish(self, params: Params, version: int) -> None:
        """Gives the servers new weights, unless they have them from this engine already.

        Raises:
          RunError: no server has them in time.
        """
        servers, transfer, leaves = self.opened(), self.transfer, jax.tree.leaves(params)
        before = None if self.source is None else [id(ref()) for ref in self.source]
        if version == self.version and before == [*map(id, leaves)]:
            return
        self.source = None
        label = f"step-{version}-{token_hex(6)}"
        weights = Weights(version=version, label=label)
        if transfer is not None:
            weights = NewWeights(
                version=version,
                label=label,
                exported=transfer.folder.write(self.policy, params, label),
                probe=transfer.probe,
                expected=transfer.probe.expected(params),
                seconds=transfer.seconds,
            )
        with servers.exclusive():
            self.weights, self.version = weights, version
            try:
                servers.install(weights)
            except RunError as error:
                if transfer is None or not self.old_head(params):
                    raise
                raise RunError(
                    f"{error} Its log-probabilities are those of the new layers below the output "
                    "head of the weights before: the head did not arrive."
                ) from None
        if transfer is not None:
            transfer.folder.keep({label})
        self.source = [weakref.ref(leaf) for leaf in leaves]

    def old_head(self, params: Params) -> bool:
        """Returns whether a server has new weights, but for the output head of those before."""
        weights, transfer = self.weights, self.transfer
        assert transfer is not None
        assert isinstance(weights, NewWeights)
        held = transfer.folder.held
        if len(held) < 2 or "embedding" not in params:  # adapters do not change the head
            return False
        probed = [server.probed for server in self.opened().pool.servers if server.refusals]
        found = [np.array(x) for x in probed if len(x) == len(weights.expected) and None not in x]
        before = held[-2].path
        return any(transfer.probe.has_old_head(x, params, weights.expected, before) for x in found)

    def complete(
        self,
        requests: Sequence[Request],
        *,
        greedy: bool = False,
        stop: Callable[[np.ndarray], bool] | None = None,
    ) -> list[Completion]:
        servers = self.opened()
        longest = self.policy.decoder.config.max_positions
        for request in requests:
            if len(request.tokens) + request.max_tokens > longest:
                raise InputError(
                    f"A request of {len(request.tokens)} tokens with max_tokens="
                    f"{request.max_tokens} is longer than the {longest} positions of the model."
                )
        total = sum(len(request.keys_N) for request in requests)
        with (
            servers.using(self.published) as weights,
            counted("rollout", "sequences", total) as count,
        ):
            batch = RequestBatch(
                requests=[
                    each for x in requests for each in self.server_requests(x, weights, greedy)
                ],
                may_stop=stop is not None,
                count=count,
            )
            future = servers.start(servers.pool.complete(batch))
            try:
                while stop is not None and not future.done():
                    whole = [x and x.finish != Finish.ABORT for x in batch.completions]
                    if stop(np.array(whole, bool)):
                        servers.loop.call_soon_threadsafe(servers.pool.stop, batch)
                        break
                    try:
                        future.result(timeout=SECONDS_BETWEEN_STOPS)
                    except NotYet:
                        continue
                future.result()
            finally:
                future.cancel()
        return [completion for completion in batch.completions if completion is not None]

    def stream(self, source: RequestSource, *, greedy: bool = False) -> None:
        """Completes the requests of a source (`Streams`), each as soon as it comes."""
        servers = self.opened()
        with servers.using(self.published) as weights:
            pending: dict[Future[Any], tuple[Request, RequestBatch]] = {}
            try:
                while True:
                    for request in source.take(wait=not pending):
                        requests = list(self.server_requests(request, weights, greedy))
                        batch = RequestBatch(requests=requests, may_stop=False)
                        pending[servers.start(servers.pool.complete(batch))] = request, batch
                    if not pending:
                        return
                    ended, _ = wait(pending, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                    for future in ended:
                        request, batch = pending.pop(future)
                        future.result()
                        (completion,) = filter(None, batch.completions)
                        if (count := newest("rollout")) is not None:  # of episodes
                            count.add(tokens=len(completion.tokens))
                        source.give(request, completion)
            finally:
                for future in pending:
                    future.cancel()

    def server_requests(
        self, request: Request, weights: Weights, greedy: bool
    ) -> Iterator[ServerRequest]:
        """Yields the requests for one completion each, one for each key."""
        policy, bits = self.policy, self.opened().pool.protocol.seed_bits
        sampling = GREEDY if greedy else self.sampling_at(weights.version)
        tokens = [int(token) for token in request.tokens]
        for key in request.keys_N:
            yield ServerRequest(
                tokens=tokens,
                seed=seed_of(key, request.drawn, bits),
                max_tokens=request.max_tokens,
                sampling=sampling,
                end_ids=policy.end_ids,
                vocabulary=policy.decoder.config.vocabulary,
                version=-1 if self.transfer is None else weights.version,
                label=weights.label,
                messages=request.messages,
                tokenizer=policy.tokenizer,
            )

    def published(self) -> Weights:
        if self.weights is None:
            raise RunError("The engine has no weights yet: publish comes before complete.")
        return self.weights

    def opened(self) -> SharedServers:
        if self.servers is None:
            raise RunError("The engine is closed.")
        return self.servers

    def release(self) -> None:
        """Does nothing: the weights are with the servers."""

    def free(self) -> None:
        """Makes the servers sleep, if `sleeps`; the next call installs the weights again.

        Raises:
          RunError: a server does not sleep.
        """
        if self.sleeps and self.servers is not None and self.weights is not None:
            self.servers.sleep()

    def close(self) -> None:
        """Deletes the folder of weights; ends the connections, unless another engine needs them."""
        servers, self.servers = self.servers, None
        self.weights, self.version, self.source = None, -1, None
        if servers is not None:
            servers.release()
            if self.transfer is not None:
                self.transfer.folder.close()
