"""Episodes as coroutines of one event loop, and their requests as a source for an engine.

The event loop has a thread of its own, so that environments answer while the engine decodes. The
thread of the rollout decodes (`engine.complete_all`).

Of several processes, process 0 runs the episodes and sends their requests to the others
(`ForwardedRequests`), because all processes must decode them together.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax

from rl4p.distributed.processes import agreed
from rl4p.protocols.engine import Completion, Engine, Request, complete_all

Result = TypeVar("Result")


class EpisodeLoop:
    """A `RequestSource` whose requests come from coroutines.

    Args:
      most: the most requests that are unfinished at a time.
      longest: the most tokens of a context and its completion.

    Attributes:
      idle: the seconds in which no request was unfinished.
      ended: the tokens that episodes have ended with, for the next request (`Request.ended`).
    """

    def __init__(self, most: int, longest: int) -> None:
        self.most, self.longest = most, longest
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.futures: dict[int, asyncio.Future[Completion]] = {}  # by the id of a request
        self.loop = asyncio.new_event_loop()
        self.ended: list[tuple[int, ...]] = []
        self.idle = 0.0

    def run(
        self,
        engine: Engine,
        episodes: Sequence[Coroutine[Any, Any, Result]],
        *,
        greedy: bool,
        around: AbstractAsyncContextManager[Any] | None = None,
    ) -> list[Result]:
        """Runs episodes to their ends; returns their results in order.

        Args:
          around: what is open in the event loop while they run.

        An exception of the engine or of an episode ends all episodes, and is raised here.
        """
        results: list[Any] = []
        ended: list[BaseException] = []

        async def everything() -> None:
            async with around or nullcontext():
                results.extend(await asyncio.gather(*episodes))

        def cancel() -> set[asyncio.Task[Any]]:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            return tasks

        async def settled(tasks: set[asyncio.Task[Any]]) -> None:
            await asyncio.gather(*tasks, return_exceptions=True)

        def work() -> None:
            try:
                try:
                    self.loop.run_until_complete(everything())
                except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                    ended.append(error)
                # What is left ends here, except threads of the loop's executor, which are not
                # waited for, since a call of an environment may hang.
                self.loop.run_until_complete(settled(cancel()))
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.close()
            finally:
                self.requests.put(None)  # tells the engine that no request will come

        thread = threading.Thread(target=work, name="episodes", daemon=True)
        thread.start()
        try:
            complete_all(engine, self, greedy=greedy)
        except BaseException:
            self.call(cancel)
            raise
        finally:
            thread.join()
        if ended:
            raise ended[0]
        return results

    def call(self, function: Callable[[], Any]) -> None:
        """Calls a function in the event loop, unless it has ended."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    async def complete(self, request: Request) -> Completion:
        """Returns the completion of a request with one key; called in a coroutine."""
        request, self.ended = replace(request, ended=tuple(self.ended)), []
        future = self.futures[id(request)] = self.loop.create_future()
        self.requests.put(request)
        return await future

    def take(self, *, wait: bool) -> Sequence[Request]:
        taken: list[Request] = []
        while True:
            began = time.monotonic()
            try:
                request = self.requests.get(block=wait and not taken)
            except queue.Empty:
                break
            self.idle += time.monotonic() - began
            if request is None:  # every later call returns at once, too
                self.requests.put(None)
                break
            taken.append(request)
        if jax.process_count() > 1:
            agreed([request.to_dict() for request in taken])
        return taken

    def give(self, request: Request, completion: Completion) -> None:
        future = self.futures.pop(id(request))

        def resolve() -> None:
            if not future.done():
                future.set_result(completion)

        self.call(resolve)


@dataclass(eq=False)
class ForwardedRequests:
    """A `RequestSource` with the requests of the `EpisodeLoop` in process 0, for other processes.

    Args:
      most, longest: as in `EpisodeLoop`.
    """

    most: int
    longest: int

    def take(self, *, wait: bool) -> Sequence[Request]:
        return [Request.from_dict(row) for row in agreed(None)]

    def give(self, request: Request, completion: Completion) -> None:
        """Does nothing, since process 0 has the same completion."""


async def within(seconds: float | None, call: Callable[[], Awaitable[Result]]) -> Result:
    """Returns the result of a call, which is cancelled at the end of its time.

    Raises:
      TimeoutError: the time was over.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await call()
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"no answer within {seconds} s") from None
        raise
