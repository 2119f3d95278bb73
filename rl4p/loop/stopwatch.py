"""Measurement of the time that the parts of a step take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rl4p.loop.compilation import compilation


class Stopwatch:
    """A stopwatch for the named parts of one step.

    with watch("rollout"):
        ...
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.compiled = compilation()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def times(self) -> dict[str, float]:
        """Returns `time/NAME` for each name, in seconds."""
        return {f"time/{name}": value for name, value in self.seconds.items()}

    def metrics(self) -> dict[str, float]:
        """Returns the times, and for the step: its seconds, compile seconds and compilations."""
        compiled = compilation().since(self.compiled)
        return self.times() | {
            "time/step": time.perf_counter() - self.started,
            "time/compile": compiled.seconds,
            "time/compilations": float(compiled.programs),
        }
