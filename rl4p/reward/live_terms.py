"""The live terms of a reward: opened once, called with deadlines, their grades read and checked.

Terms run side by side, each in a thread of its own with a hard deadline. The threads are daemons,
so that a call that never returns does not keep the process alive.
"""

import asyncio
import inspect
import logging
import queue
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Episode
from rl4p.distributed import daemon_threads
from rl4p.distributed.counting import CountedCall, newest
from rl4p.distributed.daemon_threads import DaemonThreads
from rl4p.protocols.reward import Grades, MeasuresTerm, OpensTerm, TimedTerm
from rl4p.protocols.traits import TermTraits

log = logging.getLogger(__name__)


class Late(Exception):
    """A call that did not return within its deadline."""


class TermThread:
    """A daemon thread that makes the calls of one term, one after another.

    Awaitable results are awaited on an event loop that belongs to the thread, so a client that one
    call has opened serves the next. A call cannot be ended from outside: a synchronous one goes on
    after its deadline, and the next call waits for it. A coroutine is cancelled.
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
                if future.set_running_or_notify_cancel():
                    try:
                        result = call()
                        if inspect.isawaitable(result):
                            runner.get_loop().set_default_executor(DaemonThreads())
                            result = runner.run(in_time(result, end))
                        future.set_result(result)
                    except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                        future.set_exception(error)
                # The thread may wait long, and a batch is large.
                item = future = call = result = None


async def in_time(awaitable: Awaitable[Any], end: float | None) -> Any:
    """Returns the result of an awaitable, which is cancelled at the end of its time."""
    limit = asyncio.timeout(None if end is None else end - time.monotonic())
    try:
        async with limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise Late from None
        raise


CLOSING = 20.0  # seconds to close a term
LARGEST = float(np.finfo(np.float32).max)

Groups = Sequence[np.ndarray]  # for each group, the indices of its rows


@dataclass(frozen=True, kw_only=True)
class TermGrades:
    """The grades of one term."""

    grades_B: np.ndarray  # float64; nan where the term does not apply, and where it failed
    failed_B: np.ndarray
    late: bool = False  # whether the call passed its deadline
    problem: str | None = None  # a sentence about a call without grades, or with too large ones
    error: BaseException | None = None


class LiveTerm:
    """A term that is opened when it first grades, and then waits for the next batch."""

    def __init__(self, term: Any, deadline: float | None) -> None:
        self.term = term
        self.deadline = term.deadline if isinstance(term, TimedTerm) else deadline
        self.lock = threading.Lock()
        self.live: Any = None
        self.thread: TermThread | None = None

    def start(
        self, key: str, episodes: Sequence[Episode], groups: Groups
    ) -> Callable[[], TermGrades]:
        """Starts to grade and returns a function that waits for the grades."""
        with self.lock:
            if self.live is None and isinstance(self.term, OpensTerm):
                try:
                    self.live = self.term.open()
                except (InputError, RunError):
                    raise
                except (Exception, SystemExit) as error:
                    raise RunError(f"{key} cannot be opened: {failure_of(error)}") from error
            live = self.term if self.live is None else self.live
            rows = groups if TermTraits.read(self.term).whole_groups else None
            counts = CountedCall(newest("reward"), len(episodes))
            call = make_call(live, episodes, rows, counts)
            if self.deadline is None and not is_async(live):
                wait = call  # in the waiting thread
            else:
                self.thread = self.thread or TermThread(key)
                wait = self.thread.start(call, self.deadline)

        def finish() -> TermGrades:
            error = None
            try:
                grades = read(wait())
                if grades.problem is None:
                    return grades
                grades = replace(grades, problem=f"{key} {grades.problem}")
                log.warning("%s These samples are invalid.", grades.problem)
                return grades
            except Late:
                problem = f"{key} did not return within its deadline of {self.deadline:g} s."
                late = True
            except (InputError, RunError):
                raise  # the term says itself that the run cannot go on
            except (Exception, SystemExit) as raised:  # noqa: BLE001 - the samples become invalid
                problem, late, error = f"{key} {failure_of(raised)}", False, raised
            log.warning("%s The %d samples are invalid.", problem, len(episodes))
            grades_B, failed_B = np.full(len(episodes), np.nan), np.ones(len(episodes), bool)
            return TermGrades(
                grades_B=grades_B, failed_B=failed_B, late=late, problem=problem, error=error
            )

        return finish

    def metrics(self) -> dict[str, float]:
        """Returns what the term measured since the last call, if it measures anything."""
        with self.lock:
            return dict(self.live.metrics()) if isinstance(self.live, MeasuresTerm) else {}

    def close(self) -> None:
        """Closes what was opened; the next grading opens it again."""
        with self.lock:
            live, thread, self.live, self.thread = self.live, self.thread, None, None
            if thread is not None:
                thread.close()
            if live is None:
                return
            name = type(self.term).__name__
            closer = TermThread(f"close {name}")  # the call may hang
            try:
                closer.start(live.close, CLOSING)()
            except Late:
                log.warning(
                    "%s could not be closed within %g s, and is left as it is.", name, CLOSING
                )
            finally:
                closer.close()


class WrongGrades(Exception):
    """A result that is not one grade for each row."""


def is_async(live: Any) -> bool:
    """Returns whether a call of the object gives a coroutine."""
    return inspect.iscoroutinefunction(live) or inspect.iscoroutinefunction(type(live).__call__)


def make_call(
    live: Any, episodes: Sequence[Episode], groups: Groups | None, counts: CountedCall
) -> Callable[[], Any]:
    """Returns a function that calls a term and returns its grades by row, or awaits them.

    The function also makes the list: a generator does its work only then.
    """

    def listed(result: Any) -> list[Any]:
        if groups is None:
            return checked_list(result, len(episodes), "responses")
        grades: list[Any] = [None] * len(episodes)
        group_grades = checked_list(result, len(groups), "groups")
        for rows, own in zip(groups, group_grades, strict=True):
            row_grades = checked_list(own, len(rows), "responses of a group")
            for row, grade in zip(rows.tolist(), row_grades, strict=True):
                grades[row] = grade
        return grades

    async def listed_later(result: Any) -> list[Any]:
        with counts.called():
            return listed(await result)

    def call() -> Any:
        batch = episodes
        if groups is not None:
            batch = [[episodes[row] for row in rows] for rows in groups]
        if is_async(live):
            return listed_later(live(batch))
        with counts.called():
            result = live(batch)
            if not inspect.isawaitable(result):
                return listed(result)
        return listed_later(result)

    return call


def checked_list(result: Any, count: int, what: str) -> list[Any]:
    if not isinstance(result, Iterable) or isinstance(result, (str, bytes, Mapping)):
        raise WrongGrades(f"gave {kind_of(result)} in the place of a list for {count} {what}.")
    grades = list(result)
    if len(grades) != count:
        raise WrongGrades(f"gave {len(grades)} grades for {count} {what}.")
    return grades


def kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def read(grades: Grades) -> TermGrades:
    """Returns the grades as arrays. Grades beyond float32 are failures, with a sentence."""
    absent_B = np.array([grade is None for grade in grades], bool)
    grades_B = np.full(len(grades), np.nan)  # nan for None
    for row, grade in enumerate(grades):
        try:
            if grade is not None:
                grades_B[row] = float(grade)
        except OverflowError:
            grades_B[row] = np.finfo(np.float64).max
        except (TypeError, ValueError):
            reason = f"gave {kind_of(grade)} as a grade, which is not a number."
            raise WrongGrades(reason) from None
    # Not `> LARGEST`: a comparison with nan is false, and nan is a failure too.
    failed_B = ~absent_B & ~(np.abs(grades_B) <= LARGEST)
    large_B = np.isfinite(grades_B) & failed_B
    problem = None
    if np.any(large_B):
        count, example = np.sum(large_B), grades_B[large_B][0]
        problem = f"gave {count} of {len(grades_B)} samples a grade beyond float32 ({example:g})."
    grades_B = np.where(failed_B, np.nan, grades_B)
    return TermGrades(grades_B=grades_B, failed_B=failed_B, problem=problem)


def failure_of(error: BaseException) -> str:
    """Returns a sentence about an error, with the line of the user's code that raised it."""
    if isinstance(error, WrongGrades):
        return str(error)
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in (__file__, daemon_threads.__file__):
            where = ""
        else:
            where = where or f" ({frame.filename}, line {frame.lineno})"
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r}){where}, which ends no run: raise an exception."
    sentence = f"raised {type(error).__name__}: {error}{where}."
    if "main thread" in str(error):  # signals
        sentence += " Give the term deadline = None, which calls it in the main thread."
    return sentence


def group_ids_of(episodes: Sequence[Episode]) -> np.ndarray:
    """Returns group ids by the task and the id of the prompt: int32 [B]."""
    order: dict[tuple[str, str], int] = {}
    return np.array(
        [order.setdefault((e.prompt.task, e.prompt.id), len(order)) for e in episodes], np.int32
    )


def rows_of_groups(group_ids_B: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each group in order; groups are in the order of their first rows."""
    _, first, inverse = np.unique(group_ids_B, return_index=True, return_inverse=True)
    return [np.flatnonzero(inverse == group) for group in np.argsort(first)]
