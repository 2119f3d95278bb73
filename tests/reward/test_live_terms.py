"""Tests how a term is opened and called, and what is said about one that gives no grades."""

import asyncio
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.reward.live_terms import Late, LiveTerm, TermThread, group_ids_of, rows_of_groups


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
from rl4p.reward.live_terms import Late, TermThread

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


@pytest.mark.slow
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


KEY = "reward.terms.mine"


class Term:
    """A term made of a function of the responses."""

    def __init__(self, call, **attributes):
        self.call = call
        vars(self).update(attributes)

    def __call__(self, episodes):
        return self.call([episode.response for episode in episodes])


def grades_of(term, episodes, groups=()):
    live = LiveTerm(term, 60.0)
    try:
        return live.start(KEY, episodes, groups)()
    finally:
        live.close()


def test_none_does_not_apply_and_what_is_not_finite_failed(make_episodes):
    grades = grades_of(Term(lambda texts: [1, None, np.nan, np.inf]), make_episodes("abcd"))
    np.testing.assert_array_equal(grades.grades_B, [1, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(grades.failed_B, [False, False, True, True])
    assert (grades.late, grades.problem, grades.error) == (False, None, None)


def test_a_term_may_be_asynchronous(make_episodes):
    class Judge:
        async def __call__(self, episodes):
            async def ask(episode):
                await asyncio.sleep(0)
                return float(episode.response)

            return await asyncio.gather(*map(ask, episodes))

    grades = grades_of(Judge(), make_episodes("1230"))
    np.testing.assert_array_equal(grades.grades_B, [1, 2, 3, 0])


def test_an_asynchronous_term_may_see_groups_and_have_no_deadline(make_episodes):
    class Best:
        whole_groups = True
        deadline = None

        async def __call__(self, groups):
            best = [max(each.response for each in group) for group in groups]
            return [
                [each.response == top for each in group]
                for group, top in zip(groups, best, strict=True)
            ]

    groups = rows_of_groups(np.array([7, 2, 7, 2]))
    grades = grades_of(Best(), make_episodes("1230"), groups)
    np.testing.assert_array_equal(grades.grades_B, [0, 1, 1, 0])


def test_the_line_that_raised_is_named(make_episodes):
    def fails(texts):
        return texts[99]

    grades = grades_of(Term(fails), make_episodes("ab"))
    line = fails.__code__.co_firstlineno
    assert grades.failed_B.all()
    assert isinstance(grades.error, IndexError)
    where = f"{__file__}, line {Term.__call__.__code__.co_firstlineno + 1}"
    assert grades.problem == f"{KEY} raised IndexError: list index out of range ({where})."
    assert line > 0


def test_a_signal_is_explained(make_episodes):
    """Such a term works where the main thread calls it."""
    import signal

    def by_alarm(texts):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return [1] * len(texts)

    grades = grades_of(Term(by_alarm), make_episodes("ab"))
    assert grades.problem is not None
    assert grades.problem.endswith(
        "Give the term deadline = None, which calls it in the main thread."
    )
    assert grades_of(Term(by_alarm, deadline=None), make_episodes("ab")).problem is None


@pytest.mark.parametrize("error", [InputError, RunError])
def test_the_errors_of_a_run_pass(make_episodes, error):
    def fails(texts):
        raise error("There is no sandbox here.")

    with pytest.raises(error, match=r"^There is no sandbox here\.$"):
        grades_of(Term(fails), make_episodes("ab"))


def test_a_term_that_cannot_be_opened_stops_the_run(make_episodes):
    def fails():
        raise OSError("no such socket")

    with pytest.raises(RunError, match=rf"^{KEY} cannot be opened: raised OSError: no such socket"):
        grades_of(Term(len, open=fails), make_episodes("ab"))


def test_a_thread_is_kept_for_the_next_batch_and_ends_when_closed(make_episodes):
    live = LiveTerm(Term(lambda texts: [1] * len(texts)), 60.0)
    for _ in range(3):
        live.start("kept", make_episodes("ab"), ())()
    (running,) = [x for x in threading.enumerate() if x.name == "kept"]
    live.close()
    running.join(60)
    assert not running.is_alive()


def test_a_term_that_cannot_be_closed_is_left(make_episodes, monkeypatch, caplog):
    monkeypatch.setattr("rl4p.reward.live_terms.CLOSING", 0.05)
    event = threading.Event()

    class Live:
        def __call__(self, episodes):
            return [1] * len(episodes)

        def close(self):
            event.wait()

    assert grades_of(Term(len, open=Live), make_episodes("ab")).problem is None
    event.set()
    assert "Term could not be closed within 0.05 s, and is left as it is." in caplog.text


def test_groups_have_their_rows_in_order():
    rows = rows_of_groups(np.array([4, 0, 4, 2, 0, 4]))
    assert [x.tolist() for x in rows] == [[0, 2, 5], [1, 4], [3]]
    assert rows_of_groups(np.array([], int)) == []


def test_prompts_of_different_tasks_are_different(make_prompt, make_episodes):
    prompts = [make_prompt(id=name, task=task) for name, task in ("at", "bt", "at", "au")]
    assert group_ids_of(make_episodes("1234", prompts)).tolist() == [0, 1, 0, 2]


def test_an_exit_of_a_term_is_an_error_of_the_term(make_episodes):
    def leaves(texts):
        sys.exit(0)

    grades = grades_of(Term(leaves), make_episodes("ab"))
    assert grades.failed_B.all()
    assert isinstance(grades.error, SystemExit)
    where = f"{__file__}, line {Term.__call__.__code__.co_firstlineno + 1}"
    assert grades.problem == (
        f"{KEY} called sys.exit(0) ({where}), which ends no run: raise an exception."
    )


def test_a_term_that_exits_when_it_is_opened_stops_the_run(make_episodes):
    class Leaves:
        weight = 1.0

        def open(self):
            sys.exit(0)

        def __call__(self, episodes):
            return []

    with pytest.raises(RunError, match=rf"^{KEY} cannot be opened: called sys\.exit\(0\) \("):
        grades_of(Leaves(), make_episodes("a"))
