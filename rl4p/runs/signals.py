"""SIGTERM, Ctrl-C and a closed terminal stop a run after its step; a second signal at once."""

import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TextIO

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """A context manager that stores the first signal that it receives.

    It has no effect outside the main thread, where Python cannot set signal handlers.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for name in ("stdout", "stderr"):
            if (stream := getattr(sys, name)) is not None and stream.isatty():
                setattr(sys, name, Terminal(stream))
        if threading.current_thread() is threading.main_thread():
            self.before = {
                number: signal.signal(number, self.receive)
                for number in SIGNALS
                if not ignored(number)
            }
        return self

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if number == signal.SIGHUP:
            leave_terminal()
        self.restore()

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.before = {}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()
        for name in ("stdout", "stderr"):
            if isinstance(stream := getattr(sys, name), Terminal):
                setattr(sys, name, stream.stream)


class Terminal:
    """The output to a terminal; once it is closed, what is printed is discarded."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with until_closed():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with until_closed():
            self.stream.flush()


@contextmanager
def until_closed() -> Iterator[None]:
    """Ignores the error of printing to a closed terminal, and redirects what follows."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_terminal()


def ignored(number: signal.Signals) -> bool:
    """Returns whether a signal shall have no effect: nohup has the end of a terminal ignored."""
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def discard_output() -> None:
    """Redirects the standard output, which cannot be written, to the null device.

    Otherwise Python fails once more at its end, with exit code 120.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def leave_terminal() -> None:
    """Redirects outputs to the null device if their terminal is closed, where printing fails."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
            os.dup2(null, descriptor)
    os.close(null)
