"""Tests that code which blocks holds up nothing else."""

import asyncio
import threading
import time

import pytest

from rl4p.distributed import daemon_threads
from rl4p.distributed.daemon_threads import DaemonThreads, in_thread


def test_the_result_and_the_exception_of_a_call():
    assert asyncio.run(in_thread(lambda: 7)) == 7
    with pytest.raises(KeyError, match="lost"):
        asyncio.run(in_thread(lambda: {}["lost"]))


def test_calls_wait_side_by_side():
    both = threading.Barrier(8)  # passes only if eight calls are under way at once

    async def run():
        return await asyncio.gather(*(in_thread(lambda: both.wait(timeout=60)) for _ in range(8)))

    assert sorted(asyncio.run(run())) == list(range(8))


def test_a_call_that_does_not_return_is_left_behind():
    never = threading.Event()

    async def run():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await in_thread(never.wait)
        return await in_thread(lambda: "next")

    assert asyncio.run(run()) == "next"
    never.set()
    for thread in threading.enumerate():
        if thread.name == "daemon":
            thread.join()


def test_no_more_calls_than_the_limit_are_under_way(monkeypatch):
    monkeypatch.setattr(daemon_threads, "ENVIRONMENTS", DaemonThreads(most=2))
    under_way, most = [], []

    def call():
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.02)
        under_way.pop()

    async def run():
        await asyncio.gather(*(in_thread(call) for _ in range(8)))

    asyncio.run(run())
    assert len(most) == 8
    assert max(most) == 2
