"""Several servers: requests are shared among the healthy ones, and the others are let in again.

Everything here runs in one asyncio loop, that of the `Fleet`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from rl4p.errors import RunError
from rl4p.rollout.remote.read import EMPTY, Answer, Ask, LieError
from rl4p.rollout.remote.server import (
    FAILURES_IN_A_ROW,
    Deadline,
    DownError,
    FailedError,
    RefusedError,
    Server,
    pause,
)
from rl4p.types import Finish

if TYPE_CHECKING:
    from rl4p.rollout.remote.fleet import Weights
    from rl4p.rollout.remote.sampler import RemoteSampler

log = logging.getLogger(__name__)

SECONDS_FOR_HEALTH = 10.0
SECONDS_FOR_FRAGMENTS = 10.0  # that servers have to return the tokens so far
SECONDS_BETWEEN_ABORTS = 0.2


@dataclass(eq=False, kw_only=True)
class Call:
    """The requests of one call of an engine.

    Attributes:
      asks: the requests.
      label: the label of the weights that have to draw the tokens.
      may_stop: whether the call can be stopped, so that fragments are of use.
      answers: the answers so far, each with the address of its server.
      stopping: whether it was stopped.
    """

    asks: Sequence[Ask]
    label: str
    may_stop: bool
    answers: list[tuple[Answer, str] | None] = field(default_factory=list)
    stopping: bool = False

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.asks)

    @property
    def finished(self) -> list[bool]:
        """Returns which requests have a whole completion."""
        return [x is not None and x[0].finish != Finish.ABORT for x in self.answers]


class Stopping(Exception):
    """A call was stopped while a request waited."""


class Pool:
    """The servers of a rollout.

    Args:
      options: the rollout, whose methods are the protocol.
    """

    def __init__(self, options: "RemoteSampler") -> None:
        self.options = options
        self.servers = [
            Server(url=url, key=options.key, connections=options.concurrency)
            for url in options.servers
        ]
        self.weights: Weights | None = None
        self.calls: set[Call] = set()
        self.running: dict[asyncio.Task, tuple[Call, str]] = {}
        self.stopping: set[asyncio.Task] = set()
        self.background: dict[Server, asyncio.Task] = {}
        self.changed = asyncio.Event()
        self.lonely: Deadline | None = None  # since no server is healthy

    # Weights.

    async def install(self, weights: "Weights") -> None:
        """Gives all servers these weights; returns once each has them or is out.

        Raises:
          RunError: none has them, and none gets them in time, or the first update is refused.
        """
        await self.cancel(self.background)
        first, self.weights = self.weights is None, weights
        for server in self.servers:
            server.healthy = False
        errors = await asyncio.gather(*map(self.bring_in, self.servers))
        refused = [(s, e) for s, e in zip(self.servers, errors, strict=True) if e is not None]
        if first and len(refused) == len(self.servers) and fatal(e for _, e in refused):
            raise RunError(f"No server of rollout.servers can be used: {self.reasons()}.")
        for server, error in zip(self.servers, errors, strict=True):
            if error is not None:
                announce_out(server)
            self.background[server] = asyncio.create_task(self.attend(server))
        self.notify()
        deadline = Deadline(self.options.patience)
        while not any(server.healthy for server in self.servers):
            await self.wait(deadline)

    async def bring_in(self, server: Server) -> Exception | None:
        """Gives a server the current weights and lets it in; returns what went wrong, or None."""
        options, weights = self.options, self.weights
        seconds = getattr(options, "update_seconds", options.timeout_seconds)
        deadline, server.healthy = Deadline(seconds), False
        try:
            async with asyncio.timeout(seconds):
                await options.check_in(server, deadline)
                if weights is not None and weights.exported is not None:
                    await self.update(server, weights, deadline)
        except TimeoutError:
            error = DownError(f"it did not have the weights within {seconds:g} seconds")
        except (LieError, FailedError, RefusedError) as found:
            error = found
        else:
            server.failures, server.healthy = 0, True
            if server.out:
                log.warning("%s takes part again.", server.url)
                server.out = False
            self.notify()
            return None
        server.reason = server.public(str(error))
        return error

    async def update(self, server: Server, weights: "Weights", deadline: Deadline) -> None:
        """Gives a server weights, and asks it for the log-probabilities of the probe."""
        options: Any = self.options
        await options.update(server, weights, deadline)
        found = await options.score(server, weights.probe.tokens, deadline)
        before = None if server.previous is weights.expected else server.previous
        limit = options.max_probe_gap
        if problem := weights.probe.problem(found, weights.expected, before, limit):
            raise LieError(problem)
        server.previous = weights.expected

    # Servers.

    async def attend(self, server: Server) -> None:
        """Checks a healthy server from time to time, and tries to let in one that is out."""
        failures = 0
        while True:
            if server.healthy:
                failures = 0
                await asyncio.sleep(self.options.health_seconds)
                await self.check(server)
                continue
            if await self.bring_in(server) is None:
                continue
            failures += 1
            await asyncio.sleep(min(pause(failures), self.options.health_seconds))

    async def check(self, server: Server) -> None:
        """Takes a server out if two health checks in a row fail."""
        for last in (False, True):
            try:
                await server.ask("GET", self.options.health_path, seconds=SECONDS_FOR_HEALTH)
            except (FailedError, RefusedError) as error:
                if last:
                    self.take_out(server, str(error))
            else:
                return

    def take_out(self, server: Server, reason: str) -> None:
        """Gives a server no more requests, and the ones that it has to others."""
        server.reason = server.public(reason)
        if server.healthy:
            server.healthy = False
            announce_out(server)
        for task in list(server.running):
            task.cancel()
        self.notify()

    def reasons(self) -> str:
        """Returns each server with the reason why it was taken out last."""
        return "; ".join(f"{server.url} ({server.reason})" for server in self.servers)

    async def free(self, call: Call) -> Server:
        """Returns the healthy server with the fewest requests; waits until one has a place.

        Raises:
          Stopping: the call was stopped.
          RunError: no server is healthy for too long.
        """
        while True:
            if call.stopping:
                raise Stopping
            healthy = [server for server in self.servers if server.healthy]
            open_ = [s for s in healthy if len(s.running) < self.options.concurrency]
            if open_:
                self.lonely = None
                return min(open_, key=lambda server: len(server.running))
            if healthy:
                self.lonely = None
            elif self.lonely is None:
                self.lonely = Deadline(self.options.patience)
            await self.wait(self.lonely)

    async def wait(self, deadline: Deadline | None) -> None:
        """Waits for a change, at most until the deadline.

        Raises:
          RunError: it has passed.
        """
        changed = self.changed
        try:
            async with asyncio.timeout(None if deadline is None else deadline.left):
                await changed.wait()
        except TimeoutError:
            pass
        if deadline is not None and deadline.over:
            raise RunError(
                f"No server of rollout.servers could be used for {self.options.patience:g} seconds "
                f"(rollout.patience): {self.reasons()}."
            )

    def notify(self) -> None:
        """Wakes everything that waits for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    # Requests.

    async def complete(self, call: Call) -> None:
        """Fills in all answers of a call.

        Raises:
          RunError: a request has failed too often, was refused, or no server is left.
        """
        self.calls.add(call)
        places = len(self.servers) * self.options.concurrency
        waiting = iter(range(len(call.asks)))
        workers = [
            asyncio.create_task(self.work(call, waiting))
            for _ in range(min(places, len(call.asks)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            self.calls.discard(call)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def work(self, call: Call, waiting: Iterator[int]) -> None:
        """Gets one answer after another, until no request waits."""
        for index in waiting:
            try:
                call.answers[index] = await self.answer(call, call.asks[index])
            except Stopping:
                call.answers[index] = EMPTY, ""

    async def answer(self, call: Call, ask: Ask) -> tuple[Answer, str]:
        """Returns the answer to a request and its server, after as many attempts as it takes."""
        failures = 0
        while True:
            server = await self.free(call)
            reason = await self.attempt(call, ask, server)
            if isinstance(reason, Answer):
                return reason, server.url
            if reason is None:  # the server was taken out for another reason
                continue
            failures += 1
            if failures >= self.options.attempts:
                raise RunError(
                    f"A request has failed {failures} times (rollout.attempts), the last time at "
                    f"{server.url}: {reason}."
                )
            await self.sleep(call, pause(failures))

    async def sleep(self, call: Call, seconds: float) -> None:
        """Sleeps, unless the call is stopped."""
        deadline = Deadline(seconds)
        while not deadline.over and not call.stopping:
            try:
                async with asyncio.timeout(deadline.left):
                    await self.changed.wait()
            except TimeoutError:
                return

    async def attempt(self, call: Call, ask: Ask, server: Server) -> Answer | str | None:
        """Returns the answer of a server, or why there is none; None if it was taken out."""
        id = token_hex(12)
        task = asyncio.create_task(self.options.complete(server, ask, id, call.label))
        server.running.add(task)
        self.running[task] = call, id
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            server.running.discard(task)
            self.running.pop(task, None)
            self.notify()
        if task.cancelled():
            return EMPTY if call.stopping else None
        error = task.exception()
        if error is None:
            server.failures, answer = 0, task.result()
            useful = answer.finish != Finish.ABORT or call.stopping
            if useful or (call.may_stop and answer.tokens):
                return answer
            return "it aborted the request"
        if isinstance(error, RefusedError):
            raise RunError(f"{server.url} refuses a request of the rollout: {error}.")
        if not isinstance(error, FailedError | LieError):
            raise error
        reason = server.public(str(error))
        server.failures += 1
        final = isinstance(error, LieError | DownError)
        if final or server.failures >= FAILURES_IN_A_ROW:
            self.take_out(server, reason)
        return reason

    def stop(self, wanted: Callable[[Call], bool]) -> None:
        """Ends calls early: requests that wait get nothing, the others the tokens so far."""
        for call in self.calls:
            if wanted(call) and call.may_stop and not call.stopping:
                call.stopping = True
                task = asyncio.create_task(self.fragments(call))
                self.stopping.add(task)  # a task needs a reference
                task.add_done_callback(self.stopping.discard)
        self.notify()

    async def fragments(self, call: Call) -> None:
        """Makes the servers answer with the tokens so far; drops what does not come in time."""
        options: Any = self.options
        deadline = Deadline(SECONDS_FOR_FRAGMENTS)
        while call in self.calls and not deadline.over:
            for server in self.servers:
                if ids := [id for _, id in self.of_call(call, server)]:
                    try:
                        await options.abort(server, ids)
                    except (FailedError, RefusedError) as error:
                        self.take_out(server, str(error))
            await asyncio.sleep(SECONDS_BETWEEN_ABORTS)
        for server in self.servers:
            for task, _ in self.of_call(call, server):
                task.cancel()

    def of_call(self, call: Call, server: Server) -> list[tuple[asyncio.Task, str]]:
        """Returns the requests of a call that a server is answering, with their names."""
        found = [(task, *self.running[task]) for task in server.running if task in self.running]
        return [(task, id) for task, own, id in found if own is call]

    async def cancel(self, tasks: dict[Server, asyncio.Task]) -> None:
        """Ends background tasks."""
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
            await server.close()


def announce_out(server: Server) -> None:
    """Writes to the log that a server is taken out, unless it already says so."""
    if not server.out:
        log.warning("%s is taken out: %s.", server.url, server.reason)
        server.out = True


def fatal(errors: Any) -> bool:
    """Returns whether all errors say that the configuration is wrong."""
    return all(isinstance(error, RefusedError | LieError) for error in errors)
