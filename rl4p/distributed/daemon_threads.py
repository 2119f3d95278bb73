"""Threads that nothing waits for: a call that never returns keeps no process alive."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class DaemonThreads(ThreadPoolExecutor):
    """An executor that starts a daemon thread for each call.

    Python waits for the threads of a ThreadPoolExecutor when it exits, and not for these.

    Args:
      most: the most calls at the same time; others wait. None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most, self.running = most, 0
        self.waiting: deque[Callable[[], None]] = deque()
        self.lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                future.set_exception(error)

        with self.lock:
            self.waiting.append(call)
            if self.most is not None and self.running >= self.most:
                return future
            self.running += 1
        threading.Thread(target=self.run, name="daemon", daemon=True).start()
        return future

    def run(self) -> None:
        """Makes waiting calls until there are none."""
        while True:
            with self.lock:
                if not self.waiting:
                    self.running -= 1
                    return
                call = self.waiting.popleft()
            call()
            del call  # what it returned may be large


ENVIRONMENTS = DaemonThreads(most=64)  # for the calls of all environments


async def in_thread(call: Callable[[], Result]) -> Result:
    """Returns the result of a call that may block, so that other episodes go on meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(ENVIRONMENTS, call)
