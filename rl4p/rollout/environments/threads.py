"""Threads for code that blocks, so that other episodes go on meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

MOST = threading.BoundedSemaphore(64)  # calls at the same time; others wait


async def in_thread(call: Callable[[], Result]) -> Result:
    """Returns the result of a call, made in a daemon thread.

    A call that never returns keeps its thread, but nothing waits for it: neither the other episodes
    nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    while not MOST.acquire(blocking=False):
        await asyncio.sleep(0.005)

    def end(result: Any, error: BaseException | None) -> None:
        if future.done():  # its deadline has passed
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as raised:  # noqa: BLE001 - raised again where it is awaited
            error = raised
        finally:
            MOST.release()
        if not loop.is_closed():
            loop.call_soon_threadsafe(end, result, error)

    threading.Thread(target=run, name="environment", daemon=True).start()
    return await future
