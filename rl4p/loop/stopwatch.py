"""Measurement of the time that the parts of a step take."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rl4p.loop.compilation import COMPILES, clock, compilation, compiled_within

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
