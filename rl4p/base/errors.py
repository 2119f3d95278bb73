"""Errors that are printed as one sentence, and Ctrl-C while a command imports packages.

Exit codes of every entry point: 0 finished, 2 the configuration or an input is wrong, 3 stopped by
a signal and saved, 4 stopped by `stop.before` and saved, 1 anything else. Each class of errors has
its own.
"""

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rl4p.base.terminal import write

MESSAGE = b"Interrupted before anything began.\n"


class InputError(Exception):
    """An error in the configuration or an input. The message says where, and what is correct."""

    exit_code = 2


def reason_of(error: BaseException) -> str:
    """Returns why something failed in one line, without the number and the path of an OSError."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


class RunError(Exception):
    """A failure of a run whose configuration is correct. The message says why the run ended."""

    exit_code = 1


class Stopped(Exception):
    """A stop that a signal requested. The run has been saved."""

    exit_code = 3


class OutOfTime(Stopped):
    """A stop that `stop.before` requested. The run has been saved, and can be resumed."""

    exit_code = 4


class AlreadyFinished(Exception):
    """A run that is resumed and has nothing left to do. Nothing was written."""

    exit_code = 0

    def __init__(self, folder: Path, where: str):
        super().__init__(f"{folder} is already finished, at {where}")
        self.folder = folder


@contextmanager
def importing() -> Iterator[None]:
    """Pauses the garbage collector, and lets Ctrl-C end the process at once, while modules load.

    Imports make many objects and hardly any garbage, and the collector would search all of them
    again and again. It is the same where Hydra only shows its help or a configuration.
    KeyboardInterrupt in an import prints a traceback, or a library ignores it, so Ctrl-C ends the
    process with exit code 1. Outside the main thread, and if another handler of SIGINT is
    installed, Ctrl-C stays as it is.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    collects = gc.isenabled()
    if ours:
        signal.signal(signal.SIGINT, end)
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def end(number: int, frame: FrameType | None) -> None:
    """Handles SIGINT: no exception, which could be ignored."""
    os.write(2, MESSAGE)
    os._exit(1)


def report(error: BaseException) -> int:
    """Prints an error and returns its exit code. Errors of rl4p are printed without a traceback."""
    if isinstance(error, KeyboardInterrupt):
        write("Interrupted: the work since the last save is lost.", sys.stderr)
        return 1
    ours = isinstance(error, (InputError, RunError, Stopped, AlreadyFinished))
    if not ours or os.environ.get("HYDRA_FULL_ERROR") == "1":
        write("".join(traceback.format_exception(error)).removesuffix("\n"), sys.stderr)
    else:
        write(error, sys.stderr)
    return error.exit_code if ours else 1
