"""SIGTERM, Ctrl-C and a closed terminal stop a run after its step; a second signal at once.

A step may take minutes, and a compilation lets no handler of Python run, but a queue kills a job
soon after SIGTERM. So a thread ends the process if its step has not ended in time.

Errors of what only shows or copies a run do not end it (`Tolerance`).
"""

import errno
import logging
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TextIO

from rl4p.base.console import VisibleConsole
from rl4p.base.errors import InputError, RunError
from rl4p.protocols.hook import Hook, StepInfo

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SECONDS = 15.0  # after SIGTERM; Slurm kills after 30
HANDLED_SECONDS = 1.0
FAREWELL_SECONDS = 5.0
AT_FORCED_END: list[Callable[[], object]] = []  # called, in order, before the process is ended
UNFINISHED = "Stopped in the middle of a batch; all before it is saved. The same command continues."
SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


class StopRequest:
    """A context manager that stores the first signal that it receives.

    It has no effect outside the main thread, where Python cannot set signal handlers.

    Args:
      last_words: returns what to print if the process ends in the middle of its work.
      seconds: the time after SIGTERM in which `answered` must be called or the context must end.
    """

    def __init__(
        self, last_words: Callable[[], str] = lambda: UNFINISHED, seconds: float = SECONDS
    ) -> None:
        self.last_words, self.seconds = last_words, seconds
        self.received: signal.Signals | None = None
        self.before: dict[signal.Signals, object] = {}
        self.pipe: tuple[int, int] | None = None
        self.done, self.passed_on = threading.Event(), threading.Event()

    def __enter__(self) -> "StopRequest":
        for name in ("stdout", "stderr"):
            if (stream := getattr(sys, name)) is not None and stream.isatty():
                setattr(sys, name, Terminal(stream))
        if threading.current_thread() is threading.main_thread():
            self.before = {
                number: signal.signal(number, self.receive)
                for number in SIGNALS  # nohup has the end of a terminal ignored
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
            }
            self.pipe = os.pipe()
            os.set_blocking(self.pipe[1], False)
            # Python writes the number of a signal here at once, also during a compilation.
            self.wakeup = signal.set_wakeup_fd(self.pipe[1], warn_on_full_buffer=False)
            self.thread = threading.Thread(target=self.watch, args=self.pipe[:1], daemon=True)
            self.thread.start()
        return self

    def watch(self, pipe: int) -> None:
        """Ends the process if SIGTERM is not answered in time, or a second signal not at all."""
        end, signals = None, 0
        while not self.done.is_set():
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([pipe], [], [], left)[0]:
                return self.end(3)
            number = os.read(pipe, 1)[0]
            if number in SIGNALS:
                signals += 1
                if number == signal.SIGTERM and end is None:
                    end = time.monotonic() + self.seconds
                # During a compilation, the handler of the second signal is not called soon.
                if signals > 1 and not self.passed_on.wait(HANDLED_SECONDS):
                    return self.end(1)
        return None

    def end(self, exit_code: int) -> None:
        """Prints the last words and ends the process, unless the work has just ended."""
        if not self.done.is_set():
            words = f"{SHOW_CURSOR if os.isatty(2) else ''}\n{self.last_words()}\n"
            with suppress(OSError):
                os.write(2, words.encode(errors="replace"))
            farewell = threading.Thread(target=say_farewell, daemon=True)
            farewell.start()
            farewell.join(FAREWELL_SECONDS)
            os._exit(exit_code)

    def answered(self) -> None:
        """Ends the deadline, because the work is done and only has to be saved."""
        if self.pipe is not None and not self.done.is_set():
            self.done.set()
            signal.set_wakeup_fd(self.wakeup)
            os.write(self.pipe[1], b"\0")
            self.thread.join()
            for descriptor in self.pipe:
                os.close(descriptor)

    def receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if number == signal.SIGHUP:
            leave_terminal()
        for each in self.before:
            signal.signal(each, self.pass_on)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Calls the previous handler of a second signal."""
        self.passed_on.set()
        self.restore()
        signal.raise_signal(number)

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.before = {}

    def __exit__(self, *error: object) -> None:
        self.answered()
        self.restore()
        for name in ("stdout", "stderr"):
            if isinstance(stream := getattr(sys, name), Terminal):
                setattr(sys, name, stream.stream)


def say_farewell() -> None:
    """Calls what is to be called before the process is ended; one that fails is left out."""
    for call in AT_FORCED_END.copy():
        with suppress(Exception):
            call()


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


log = logging.getLogger(__name__)

PLAIN_WIDTH = 200  # characters of the longest row of a table


@dataclass(frozen=True)
class Tolerance:
    """Makes the first error of each part a warning, and ignores its later errors.

    An `InputError` or a `RunError` is raised: the user can correct the first, and the second says
    that the record of the run could not be written.
    """

    failed: set[str] = field(default_factory=set)  # the names of the parts that failed

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Makes an error of a part a warning, in place of raising it."""
        try:
            yield
        except (InputError, RunError):
            raise
        except Exception as error:  # noqa: BLE001 - the run continues after any error
            if name not in self.failed:
                log.warning("%s failed, and the run continues: %r", name, error)
            self.failed.add(name)


class RunConsole(VisibleConsole):
    """A console of a run, which goes on when nobody reads its output any more, as in `| head`.

    The console of rich ends the process. Without a terminal no row of a table is divided.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_terminal:
            self.width = max(self.width, PLAIN_WIDTH)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output()
        log.warning("Nobody reads the output any more, and the run continues.")


class Tolerated:
    """A hook that only shows a run or records its samples, and whose errors are warnings."""

    def __init__(self, hook: Hook, name: str) -> None:
        self.hook, self.name, self.every = hook, name, hook.every
        self.tolerance = Tolerance()

    def __call__(self, info: StepInfo) -> None:
        with self.tolerance.of(self.name):
            self.hook(info)
