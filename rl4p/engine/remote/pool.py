"""A pool of servers: the healthy ones share the requests, and the others are let in again.

Everything here runs in one asyncio loop, which `SharedServers` owns.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex

import numpy as np

from rl4p.base.address import api_key
from rl4p.base.errors import InputError, RunError
from rl4p.base.http import (
    HttpClient,
    InvalidResponseError,
    RefusedError,
    RequestError,
    UnreachableError,
    for_each,
)
from rl4p.base.types import Finish
from rl4p.distributed.counting import Count
from rl4p.engine.remote.protocol import (
    LONGEST_PAUSE,
    Deadline,
    NewWeights,
    PoolOptions,
    RemoteServer,
    ServerProtocol,
    ServerRequest,
    Weights,
    WeightsProtocol,
    short_pause,
)
from rl4p.protocols.engine import Completion

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3  # after which a server is taken out
REFUSALS_IN_A_ROW = 3  # of all servers, after which a run ends: to wait for them would be of no use
LARGEST_RESPONSE = 256 * 2**20  # bytes
SECONDS_FOR_HEALTH = 10.0
SECONDS_FOR_FRAGMENTS = 10.0  # that servers have to return the tokens so far
SECONDS_BETWEEN_ABORTS = 0.2


@dataclass(eq=False, kw_only=True)
class RequestBatch:
    """The requests of one call of an engine.

    Attributes:
      requests: the requests, each for one completion.
      may_stop: whether the batch can be stopped, so that fragments are of use.
      completions, count: the completions so far, and their count.
      stopping: whether it was stopped.
    """

    requests: Sequence[ServerRequest]
    may_stop: bool
    count: Count = field(default_factory=lambda: Count("rollout", "sequences", 0))
    completions: list[Completion | None] = field(default_factory=list)
    stopping: bool = False

    def __post_init__(self) -> None:
        self.completions = [None] * len(self.requests)


class Stopping(Exception):
    """A batch was stopped while a request waited."""


class ServerPool:
    """The servers of a rollout or of a teacher.

    Raises:
      InputError: the environment variable of the key is not set.
    """

    def __init__(self, options: PoolOptions, protocol: ServerProtocol) -> None:
        try:
            key = api_key(options.key_variable, f"{options.group}.key_variable")
        except ValueError as error:
            raise InputError(str(error)) from None
        self.options, self.protocol = options, protocol
        # More connections than requests, so that a check never waits for one.
        connections = options.concurrency + 4
        clients = [
            HttpClient(url=url, key=key, connections=connections, largest_response=LARGEST_RESPONSE)
            for url in options.servers
        ]
        self.servers = [RemoteServer(client=client) for client in clients]
        self.weights: Weights | None = None
        self.batches: set[RequestBatch] = set()
        self.running: dict[asyncio.Task, tuple[RequestBatch, str]] = {}
        self.stopping: set[asyncio.Task] = set()
        self.background: dict[RemoteServer, asyncio.Task] = {}
        self.changed = asyncio.Event()
        self.deadline: Deadline | None = None  # by which a server must be healthy, if none is

    # Weights.

    async def install(self, weights: Weights) -> None:
        """Gives all servers these weights; returns once each has them or is out.

        Raises:
          RunError: none has them, and none gets them in time, or the first update is refused.
        """
        await self.cancel(self.background)
        first, self.weights = self.weights is None, weights
        for server in self.servers:
            server.healthy = False
        errors = await asyncio.gather(*map(self.bring_in, self.servers))
        if first and all(isinstance(x, RefusedError | InvalidResponseError) for x in errors):
            group = self.options.group
            raise RunError(f"No server of {group}.servers can be used: {self.reasons()}.")
        for server, error in zip(self.servers, errors, strict=True):
            if error is not None:
                announce(server)
            self.background[server] = asyncio.create_task(self.attend(server))
        self.notify()
        deadline = Deadline(self.options.patience)
        while not any(server.healthy for server in self.servers):
            await self.wait(deadline)

    async def bring_in(self, server: RemoteServer) -> RequestError | None:
        """Gives a server the current weights and lets it in; returns what went wrong, or None."""
        weights, protocol = self.weights, self.protocol
        loads = isinstance(weights, NewWeights)
        seconds = weights.seconds if loads else self.options.timeout_seconds
        deadline, server.healthy = Deadline(seconds), False
        try:
            async with asyncio.timeout(seconds):
                await protocol.check(server, deadline)
                if loads:
                    assert isinstance(protocol, WeightsProtocol)
                    if server.asleep:
                        server.asleep = False  # it may have been started again, and is then awake
                        await protocol.wake(server, deadline)
                    await protocol.load(server, weights, deadline)
                    await self.prove(server, weights, deadline)
        except TimeoutError:
            problem = UnreachableError(f"it did not have the weights within {seconds:g} seconds")
        except RequestError as error:
            problem = error
        else:
            server.failures = server.refusals = 0
            server.healthy = True
            if server.announced:
                log.warning("%s takes part again.", server.url)
                server.announced = False
            self.notify()
            return None
        server.reason = server.client.without_key(str(problem))
        lasting = isinstance(problem, RefusedError | InvalidResponseError)
        server.refusals = server.refusals + 1 if lasting else 0
        self.notify()
        return problem

    async def prove(self, server: RemoteServer, weights: NewWeights, deadline: Deadline) -> None:
        """Compares a server's log-probabilities of the probe with those of the weights.

        Raises:
          InvalidResponseError: they are of other weights.
          RequestError: it did not return them.
        """
        assert isinstance(self.protocol, WeightsProtocol)
        probe, expected = weights.probe, weights.expected
        server.probed = await self.protocol.score(server, probe.tokens, deadline)
        before = None if server.previous is expected else server.previous
        if problem := probe.problem(server.probed, expected, before, server.rounding):
            raise InvalidResponseError(problem)
        if server.rounding is None:
            server.rounding = float(np.abs(np.array(server.probed) - expected).max())
        server.previous = expected

    async def release_memory(self) -> None:
        """Makes the healthy servers give their memory back, until the next `install`.

        Raises:
          RunError: one does not.
        """
        await self.cancel(self.background)
        assert isinstance(self.protocol, WeightsProtocol)
        for server in [server for server in self.servers if server.healthy]:
            server.healthy = False
            try:
                await self.protocol.sleep(server, Deadline(self.options.timeout_seconds))
            except RequestError as error:
                reason = server.client.without_key(str(error))
                raise RunError(f"{server.url} does not sleep (rollout.sleep): {reason}.") from None
            server.asleep = True

    # Servers.

    async def attend(self, server: RemoteServer) -> None:
        """Checks a healthy server from time to time, and tries to let in one that is out.

        Two failed health checks in a row take it out.
        """
        failures, path = 0, self.protocol.health_path
        while True:
            if not server.healthy:
                if await self.bring_in(server) is not None:
                    failures += 1
                    await asyncio.sleep(min(short_pause(failures), self.options.health_seconds))
                continue
            failures = 0
            await asyncio.sleep(self.options.health_seconds)
            for last in (False, True):
                try:
                    await server.send("GET", path, seconds=SECONDS_FOR_HEALTH)
                    break
                except RequestError as error:
                    if last:
                        self.take_out(server, error)

    def take_out(self, server: RemoteServer, error: RequestError) -> None:
        """Gives a server no more requests, and the ones that it has to others."""
        server.reason = server.client.without_key(str(error))
        if server.healthy:
            server.healthy = False
            announce(server)
        for task in list(server.running):
            task.cancel()
        self.notify()

    def reasons(self) -> str:
        return "; ".join(f"{server.url} ({server.reason})" for server in self.servers)

    async def free(self, batch: RequestBatch) -> RemoteServer:
        """Returns the healthy server with the fewest requests; waits until one has a place.

        Raises:
          Stopping: the batch was stopped.
          RunError: no server is healthy for too long.
        """
        while True:
            if batch.stopping:
                raise Stopping
            healthy = [server for server in self.servers if server.healthy]
            if healthy:
                self.deadline = None
                server = min(healthy, key=lambda server: len(server.running))
                if len(server.running) < self.options.concurrency:
                    return server
            elif self.deadline is None:
                self.deadline = Deadline(self.options.patience)
            await self.wait(self.deadline)

    async def wait(self, deadline: Deadline | None) -> None:
        """Waits for a change, at most until the deadline.

        Raises:
          RunError: it has passed.
        """
        changed, group = self.changed, self.options.group
        try:
            async with asyncio.timeout(None if deadline is None else deadline.left):
                await changed.wait()
        except TimeoutError:
            pass
        if deadline is None:
            return
        if all(server.refusals >= REFUSALS_IN_A_ROW for server in self.servers):
            raise RunError(
                f"No server of {group}.servers can be used, after "
                f"{min(server.refusals for server in self.servers)} attempts: {self.reasons()}."
            )
        if deadline.over:
            raise RunError(
                f"No server of {group}.servers could be used for {self.options.patience:g} seconds "
                f"({group}.patience): {self.reasons()}."
            )

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    # Requests.

    async def complete(self, batch: RequestBatch) -> None:
        """Fills in all completions of a batch.

        Raises:
          RunError: a request has failed too often, was refused, or no server is left.
        """

        async def complete_one(index: int) -> None:
            request = batch.requests[index]
            try:
                batch.completions[index] = completion = await self.completion(batch, request)
                batch.count.add(1, tokens=len(completion.tokens))
            except Stopping:
                batch.completions[index] = request.completion("", (), (), Finish.ABORT)

        places = min(len(self.servers) * self.options.concurrency, len(batch.requests))
        self.batches.add(batch)
        try:
            await for_each(range(len(batch.requests)), complete_one, concurrency=places)
        finally:
            self.batches.discard(batch)

    async def completion(self, batch: RequestBatch, request: ServerRequest) -> Completion:
        """Returns the completion of a request, after as many attempts as it takes."""
        failures = 0
        while True:
            server = await self.free(batch)
            result = await self.attempt(batch, request, server)
            if isinstance(result, Completion):
                return result
            if result is None:  # the server was taken out for another reason
                continue
            failures += 1
            if failures >= self.options.attempts:
                reason = server.client.without_key(str(result))
                raise RunError(
                    f"A request has failed {failures} times ({self.options.group}.attempts), the "
                    f"last time at {server.url}: {reason}."
                )
            await self.sleep(batch, short_pause(failures, min(result.retry_after, LONGEST_PAUSE)))

    async def sleep(self, batch: RequestBatch, seconds: float) -> None:
        deadline = Deadline(seconds)
        while not deadline.over and not batch.stopping:
            try:
                async with asyncio.timeout(deadline.left):
                    await self.changed.wait()
            except TimeoutError:
                return

    async def attempt(
        self, batch: RequestBatch, request: ServerRequest, server: RemoteServer
    ) -> Completion | RequestError | None:
        """Returns the completion of a server, or why there is none; None if it was taken out."""
        id, seconds = token_hex(12), self.options.timeout_seconds
        task = asyncio.create_task(self.protocol.complete(server, request, id, seconds=seconds))
        server.running.add(task)
        self.running[task] = batch, id
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            server.running.discard(task)
            self.running.pop(task, None)
            self.notify()
        if task.cancelled():
            return request.completion(server.url, (), (), Finish.ABORT) if batch.stopping else None
        error = task.exception()
        if error is None:
            server.failures, completion = 0, task.result()
            useful = completion.finish != Finish.ABORT or batch.stopping
            if useful or (batch.may_stop and len(completion.tokens)):
                return completion
            return RequestError("it aborted the request")
        if isinstance(error, RefusedError):
            group = self.options.group
            raise RunError(f"{server.url} refuses a request of the {group}: {error}.")
        if not isinstance(error, RequestError):
            raise error
        server.failures += 1
        final = isinstance(error, InvalidResponseError | UnreachableError)
        if final or server.failures >= FAILURES_IN_A_ROW:
            self.take_out(server, error)
        return error

    def stop(self, batch: RequestBatch | None = None) -> None:
        """Ends a batch early, or all: waiting requests get nothing, others the tokens so far."""
        for each in self.batches if batch is None else self.batches & {batch}:
            if each.may_stop and not each.stopping:
                each.stopping = True
                task = asyncio.create_task(self.collect_fragments(each))
                self.stopping.add(task)  # a task needs a reference
                task.add_done_callback(self.stopping.discard)
        self.notify()

    async def collect_fragments(self, batch: RequestBatch) -> None:
        """Makes the servers return the tokens so far; drops requests that take too long."""
        assert isinstance(self.protocol, WeightsProtocol)
        deadline = Deadline(SECONDS_FOR_FRAGMENTS)
        while batch in self.batches and not deadline.over:
            for server in self.servers:
                if ids := [id for _, id in self.requests_at(server, batch)]:
                    try:
                        await self.protocol.abort(server, ids)
                    except RequestError as error:
                        self.take_out(server, error)
            await asyncio.sleep(SECONDS_BETWEEN_ABORTS)
        for server in self.servers:
            for task, _ in self.requests_at(server, batch):
                task.cancel()

    def requests_at(
        self, server: RemoteServer, batch: RequestBatch
    ) -> list[tuple[asyncio.Task, str]]:
        running = [(task, *self.running[task]) for task in server.running if task in self.running]
        return [(task, id) for task, other, id in running if other is batch]

    async def cancel(self, tasks: dict[RemoteServer, asyncio.Task]) -> None:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        tasks.clear()

    async def close(self) -> None:
        await self.cancel(self.background)
        tasks = [*self.stopping, *(task for server in self.servers for task in server.running)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self.servers:
            await server.client.aclose()


def announce(server: RemoteServer) -> None:
    if not server.announced:
        log.warning("%s is taken out: %s.", server.url, server.reason)
        server.announced = True
