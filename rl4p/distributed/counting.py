"""How much of a phase is done. The code that does the work counts; the progress of a run shows it.

Counting reads nothing from a device: it costs some additions on the host.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock

LOCK = Lock()
COUNTS: list["Count"] = []  # of the phases that go on, in all threads; the newest is the last


@dataclass(eq=False)  # two calls with equal counts are not the same
class Count:
    """How much of one call of a phase is done."""

    phase: str  # the name of the phase, such as "rollout"
    unit: str  # what is counted, in the plural, such as "sequences"
    total: int  # how many of them the call has; 0 if that is unknown
    done: int = 0  # how many of them are done
    tokens: int = 0  # the number of tokens that were drawn
    # When the call began, in the seconds of `time.perf_counter`.
    began: float = field(default_factory=time.perf_counter)

    def add(self, done: int = 0, *, tokens: int = 0, total: int = 0) -> None:
        """Adds to the count; any thread may call this."""
        with LOCK:
            self.done += done
            self.tokens += tokens
            self.total += total


def newest(phase: str) -> Count | None:
    """Returns the count of the newest call of a phase that goes on, or None."""
    with LOCK:
        return next((count for count in reversed(COUNTS) if count.phase == phase), None)


@contextmanager
def counted(phase: str, unit: str, total: int = 0) -> Iterator[Count]:
    """Yields the count of a call of a phase, which is shown while the call goes on."""
    count = Count(phase, unit, total)
    with LOCK:
        COUNTS.append(count)
    try:
        yield count
    finally:
        with LOCK:
            COUNTS.remove(count)


class CountedCall:
    """The items of a count that one call of a reward term has.

    Calls go on side by side, so each counts its own items.
    """

    def __init__(self, count: Count | None, items: int) -> None:
        self.count, self.left = count, items
        if count is not None:
            count.add(total=items)

    def add(self, done: int) -> None:
        """Adds items, at most as many as are left."""
        done = min(done, self.left)
        self.left -= done
        if self.count is not None:
            self.count.add(done)

    @contextmanager
    def called(self) -> Iterator[None]:
        """Directs `item_done` to this call within a `with` block; at its end, counts the rest."""
        token = CALL.set(self)
        try:
            yield
        finally:
            CALL.reset(token)
            self.add(self.left)


CALL: ContextVar[CountedCall | None] = ContextVar("CALL", default=None)


def item_done() -> None:
    """Counts an item of the call of a reward term in this context, if there is one."""
    if (call := CALL.get()) is not None:
        call.add(1)
