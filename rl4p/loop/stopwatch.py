"""The times of a step and of its parts, of compilation, and of the work that it delays."""

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.monitoring

from rl4p.base.storage import cache_folder


@dataclass(kw_only=True)
class Compilation:
    """Counters of compilation in this process."""

    # The time spent on tracing, lowering and compiling, or on reading from the cache.
    seconds: float = 0.0
    programs: int = 0  # the number of programs compiled or read from the cache
    from_cache: int = 0  # the number read from the cache. It shows whether the cache works.

    def since(self, before: "Compilation") -> "Compilation":
        return Compilation(
            seconds=self.seconds - before.seconds,
            programs=self.programs - before.programs,
            from_cache=self.from_cache - before.from_cache,
        )


class Spans:
    """Spans of time that do not overlap, in order."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    def add(self, start: float, end: float) -> float:
        """Adds a span and returns the seconds of it that no earlier span had."""
        before = self.within(start, end)
        first, after = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < after:  # spans that it overlaps or touches become one with it
            joined = min(start, self.starts[first]), max(end, self.ends[after - 1])
        else:
            joined = start, end
        self.starts[first:after], self.ends[first:after] = [joined[0]], [joined[1]]
        return end - start - before

    def between(self, start: float, end: float) -> list[tuple[float, float]]:
        """Returns the parts of the spans between two times."""
        first, after = bisect_right(self.ends, start), bisect_left(self.starts, end)
        spans = zip(self.starts[first:after], self.ends[first:after], strict=True)
        return [(max(start, one), min(end, other)) for one, other in spans]

    def within(self, start: float, end: float) -> float:
        """Returns the seconds of the spans between two times."""
        return sum(other - one for one, other in self.between(start, end))


# What a thread works for. A thread that works for another one runs in a copy of its context.
WORK: ContextVar[str] = ContextVar("WORK", default="the training loop")
COUNTED = Compilation()
COMPILING: defaultdict[str, Spans] = defaultdict(Spans)  # by work, in the seconds of `clock`
COMPILES: dict[str, float] = {}  # "since" is when the compilation began that goes on, if one does
LOCK = Lock()
clock = time.perf_counter


def compilation() -> Compilation:
    """Returns a copy of the counters."""
    return replace(COUNTED)


def compiled_within(start: float, end: float, work: str | None = None) -> float:
    """Returns the seconds between two times in which programs for some work were compiled.

    A compilation that still goes on is not counted.

    Args:
      work: the name of the work; None is the work of this thread.
    """
    with LOCK:
        return COMPILING[work or WORK.get()].within(start, end)


def waited_for(start: float, end: float, works: Iterable[str]) -> float:
    """Returns the seconds in which the work of others was compiled, while this thread waited.

    They count as compilation of this thread's work from now on, since they delayed it.

    Args:
      works: the work for which the thread waited from `start` to `end`.
    """
    with LOCK:
        spans = [span for work in works for span in COMPILING[work].between(start, end)]
        return sum(COMPILING[WORK.get()].add(*span) for span in spans)


def count_duration(event: str, duration_secs: float, **_: Any) -> None:
    """Counts the duration of an event that has ended just now, in the thread of the event."""
    if event.startswith("/jax/core/compile/"):
        end = clock()
        with LOCK:  # tracing one function may compile another: their spans overlap
            COUNTED.seconds += COMPILING[WORK.get()].add(end - duration_secs, end)
    if event == "/jax/core/compile/backend_compile_duration":  # sent for reads of the cache too
        COUNTED.programs += 1
        COMPILES.clear()


def count_event(event: str, **_: Any) -> None:
    if event == "/jax/compilation_cache/compile_requests_use_cache":  # sent before XLA compiles
        COMPILES["since"] = clock()
    if event == "/jax/compilation_cache/cache_hits":
        COUNTED.from_cache += 1


jax.monitoring.register_event_duration_secs_listener(count_duration)
jax.monitoring.register_event_listener(count_event)


def keep_programs() -> None:
    """Makes JAX store compiled programs in the user's cache folder and read them from there.

    JAX's own variables take precedence: `JAX_COMPILATION_CACHE_DIR` names another folder, and
    `JAX_ENABLE_COMPILATION_CACHE=false` disables the cache.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder("programs")))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # many are small


DOING: list[tuple[str, float]] = []  # the parts that the main thread is in, and when each began


def activity() -> tuple[str, float] | None:
    """Returns what the main thread does now and since when, or None; any thread may call this."""
    if (since := COMPILES.get("since")) is not None:
        return "compile", since
    return next(iter(DOING[-1:]), None)


@contextmanager
def doing(name: str, started: float) -> Iterator[None]:
    """Lets `activity` name a part while the main thread is in it."""
    shown = threading.current_thread() is threading.main_thread()
    if shown:
        DOING.append((name, started))
    try:
        yield
    finally:
        if shown:
            DOING.pop()


class Stopwatch:
    """A stopwatch for the named parts of one step, and for the compilation in them.

    with watch("rollout"):
        ...
    """

    def __init__(self) -> None:
        self.started = clock()
        self.compiled = compilation()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = clock()
        with doing(name, started):
            yield
        ended = clock()
        seconds = ended - started - compiled_within(started, ended)
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def times(self) -> dict[str, float]:
        """Returns `time/NAME` for each name, in seconds without compilation."""
        return {f"time/{name}": value for name, value in self.seconds.items()}

    def metrics(self) -> dict[str, float]:
        """Returns the times, and for the step: its seconds, compile seconds and compilations."""
        ended = clock()
        return self.times() | {
            "time/step": ended - self.started,
            "time/compile": compiled_within(self.started, ended),
            "time/compilations": float(compilation().since(self.compiled).programs),
        }


class Times(NamedTuple):
    """The seconds that a thread worked and did not."""

    busy: float
    idle: float


class WorkingTime:
    """Measures how long a thread works between two readings, also if work goes on at a reading.

    Compilation is neither work nor idle. One lock must guard all calls.

    Args:
      work: the name of the work of the thread (`WORK`).
    """

    def __init__(self, work: str) -> None:
        self.work = work
        self.last_reading = clock()
        self.since: float | None = None
        self.busy = self.compiled = 0.0

    def begin(self) -> None:
        self.since = clock()

    def end(self) -> None:
        """Adds the time since `begin`, or since the last reading if that was later."""
        if self.since is not None:
            self.add(self.since, clock())
        self.since = None

    def add(self, since: float, now: float) -> None:
        compiled = compiled_within(since, now, self.work)
        self.busy += now - since - compiled
        self.compiled += compiled

    def read(self, now: float) -> Times:
        """Returns the times between the last reading and `now`."""
        if self.since is not None:
            self.add(self.since, now)
            self.since = now
        passed = now - self.last_reading
        times = Times(busy=self.busy, idle=max(0.0, passed - self.busy - self.compiled))
        self.last_reading, self.busy, self.compiled = now, 0.0, 0.0
        return times
