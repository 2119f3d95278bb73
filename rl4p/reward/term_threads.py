"""The threads in which reward terms run side by side, each with a hard deadline.

The threads are daemons, so that a call that never returns does not keep the process alive.
"""

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import closing
from contextvars import copy_context
from functools import partial
from typing import Any

from rl4p.distributed.daemon_threads import DaemonThreads


class Late(Exception):
    """A call that did not return within its deadline."""


class TermThread:
    """A daemon thread that makes the calls of one term, one after another.

    Awaitable results are awaited on an event loop that belongs to the thread, so a client that one
    call has opened serves the next. A call cannot be ended from outside: a synchronous one goes on
    after its deadline, and the next call waits for it. A coroutine is cancelled.

    Args:
      name: the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self.run, name=name, daemon=True).start()

    def start(self, call: Callable[[], Any], deadline: float | None) -> Callable[[], Any]:
        """Queues a call and returns a function that waits for its result.

        The call runs in a copy of the context of this thread, so that its work counts as the work
        of this thread.

        Args:
          deadline: seconds from now, the time behind earlier calls included; None for no limit.

        Returns:
          A function that returns the result, raises what the call raised, or raises `Late`.
        """
        end = None if deadline is None else time.monotonic() + deadline
        future: Future[Any] = Future()
        self.calls.put((future, partial(copy_context().run, call), end))

        def wait() -> Any:
            try:
                seconds = None if end is None else max(0.0, end - time.monotonic())
                error = future.exception(seconds)
            except TimeoutError:
                future.cancel()  # a call that has not begun is never made
                raise Late from None
            if error is not None:
                raise error
            return future.result()

        return wait

    def close(self) -> None:
        """Ends the thread after its present call, without waiting for it."""
        self.calls.put(None)

    def run(self) -> None:
        with closing(asyncio.Runner()) as runner:  # it makes its loop when it is first used
            while (item := self.calls.get()) is not None:
                future, call, end = item
                make(future, call, end, runner)
                del item, future, call  # the thread may wait long, and a batch is large


def make(
    future: Future[Any], call: Callable[[], Any], end: float | None, runner: asyncio.Runner
) -> None:
    """Makes a call, awaits its result if it is awaitable, and hands the result to the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
        if inspect.isawaitable(result):
            runner.get_loop().set_default_executor(DaemonThreads())
            result = runner.run(awaited(result, end))
        future.set_result(result)
    except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
        future.set_exception(error)


async def awaited(awaitable: Awaitable[Any], end: float | None) -> Any:
    """Returns the result of an awaitable, which is cancelled at the end of its time.

    Raises:
      Late: the time was over. A TimeoutError of the awaitable itself is raised as it is.
    """
    limit = asyncio.timeout(None if end is None else end - time.monotonic())
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise Late from None
        raise
