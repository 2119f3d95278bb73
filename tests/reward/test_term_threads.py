"""Tests that calls end at their deadlines, and that a call without end does not keep a process."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from rl4p.reward.term_threads import Late, TermThread


@pytest.fixture
def thread():
    made = TermThread("a term")
    yield made
    made.close()


def test_calls_are_made_one_after_another_in_one_thread(thread):
    waits = [thread.start(lambda i=i: (i, threading.get_ident()), 60.0) for i in range(3)]
    results = [wait() for wait in waits]
    assert [i for i, _ in results] == [0, 1, 2]
    assert len({ident for _, ident in results} | {threading.get_ident()}) == 2


def test_an_error_is_raised_by_the_wait(thread):
    def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        thread.start(fails, 60.0)()
    with pytest.raises(TimeoutError):  # its own, and not that of the deadline
        thread.start(lambda: (_ for _ in ()).throw(TimeoutError("busy")), 60.0)()


def test_a_deadline_counts_the_time_behind_an_earlier_call(thread):
    event, made = threading.Event(), []
    first = thread.start(event.wait, 0.02)
    second = thread.start(lambda: made.append(1), 0.02)
    for wait in (first, second):
        with pytest.raises(Late):
            wait()
    event.set()
    assert thread.start(lambda: made, 60.0)() == []  # the call that was late is never made


def test_without_a_deadline_a_call_may_take_any_time(thread):
    event = threading.Event()
    wait = thread.start(event.wait, None)
    threading.Timer(0.05, event.set).start()
    assert wait() is True


def test_coroutines_share_the_loop_of_the_thread(thread):
    async def loop():
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    first, second = (thread.start(loop, 60.0) for _ in range(2))
    assert first() is second()


def test_a_coroutine_is_cancelled_at_its_deadline(thread):
    cancelled = threading.Event()

    async def slow():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(Late):
        thread.start(slow, 1.0)()
    assert cancelled.wait(60)
    assert thread.start(lambda: 1, 60.0)() == 1  # the thread is free again


def test_a_timeout_of_a_coroutine_is_its_own_error(thread):
    async def refused():
        raise TimeoutError("the server")

    with pytest.raises(TimeoutError, match="the server"):
        thread.start(refused, 60.0)()


def test_a_closed_thread_ends():
    thread = TermThread("ends")
    thread.start(lambda: None, 60.0)()
    thread.close()
    (running,) = [x for x in threading.enumerate() if x.name == "ends"] or [None]
    if running is not None:
        running.join(60)
        assert not running.is_alive()


HANGS = """
import asyncio, threading, time
from rl4p.reward.term_threads import Late, TermThread

async def in_a_thread():
    await asyncio.to_thread(time.sleep, 10**6)

def spins():
    while True:
        pass

for call in (lambda: time.sleep(10**6), in_a_thread, spins):
    try:
        TermThread("hangs").start(call, 0.05)()
    except Late:
        print("late")
"""


def test_a_call_without_end_does_not_keep_the_process_alive():
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["late"] * 3


def test_a_finished_call_is_not_late_however_late_one_looks(thread):
    wait = thread.start(lambda: 5, 0.2)
    thread.start(lambda: None, 60.0)()
    time.sleep(0.25)
    assert wait() == 5


def test_an_exit_is_an_error_of_the_call_and_the_next_call_is_made(thread):
    async def exits():
        sys.exit(3)

    async def one():
        return 1

    for call in (exits, sys.exit):
        with pytest.raises(SystemExit):
            thread.start(call, 60.0)()
        assert thread.start(one, 60.0)() == 1
