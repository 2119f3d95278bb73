"""Tests that a first signal asks a run to stop, and a second one calls the previous handler."""

import errno
import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs.progress import ProgressBar, ResponseBar
from rl4p.runs.signals import SIGNALS, StopRequest, Terminal, Tolerance, Tolerated
from tests.support.logs import info


@pytest.fixture
def before():
    """Installs handlers that record signals, as the handlers before a run."""
    noted = []
    old = {number: signal.signal(number, lambda n, frame: noted.append(n)) for number in SIGNALS}
    yield noted
    for number, handler in old.items():
        signal.signal(number, handler)


def handlers():
    return {number: signal.getsignal(number) for number in SIGNALS}


def test_nohup_lets_a_run_survive_its_terminal(before):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as request:
        os.kill(os.getpid(), signal.SIGHUP)
        assert request.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.received is signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_remembered_and_the_second_goes_through(before, number):
    with StopRequest() as request:
        assert request.received is None
        os.kill(os.getpid(), number)
        assert request.received is number
        assert before == []
        os.kill(os.getpid(), number)
        assert before == [number]
        other = next(each for each in SIGNALS if each != number)
        os.kill(os.getpid(), other)
        assert before == [number, other]
    assert request.received is number


def test_handlers_are_those_of_before_once_it_is_left(before):
    old = handlers()
    with StopRequest():
        assert not set(handlers().values()) & set(old.values())
    assert handlers() == old
    with pytest.raises(RuntimeError, match="a run that fails"), StopRequest():
        raise RuntimeError("a run that fails")
    assert handlers() == old
    os.kill(os.getpid(), signal.SIGTERM)
    assert before == [signal.SIGTERM]


def test_in_another_thread_signals_do_what_they_did(before):
    old, found = handlers(), []

    def work():
        with StopRequest() as request:
            found.append(handlers())
            os.kill(os.getpid(), signal.SIGINT)
        found.append(request.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [old, None]
    assert handlers() == old
    assert before == [signal.SIGINT]


def test_what_is_printed_to_a_closed_terminal_is_discarded():
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as stream:
        terminal = Terminal(stream)
        assert terminal.isatty()
        os.close(outer)
        assert terminal.write("a line\n") == 7
        terminal.flush()
        with Path(os.devnull).open("wb") as null:  # so that the stream can be closed
            os.dup2(null.fileno(), inner)


# Closes the terminal of a process, and writes to its descriptor as C++ code and old handlers do.
WRITES = """
import os, pty, signal
from rl4p.runs.signals import StopRequest
process, terminal = pty.fork()
if process == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored if nohup started the tests
    with StopRequest() as request:
        os.write(1, b"ready")
        while request.received is None:
            signal.pause()
        os.write(1, b"more")
    os._exit(0)
os.read(terminal, 5)
os.close(terminal)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def test_what_does_not_know_that_the_terminal_is_closed_may_write():
    assert subprocess.run([sys.executable, "-c", WRITES], check=False).returncode == 0


def test_another_error_of_an_output_is_raised():
    with Path("/dev/full").open("w") as stream:
        terminal = Terminal(stream)
        terminal.write("a line\n")
        with pytest.raises(OSError, match="No space left"):
            terminal.flush()
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), stream.fileno())


def test_only_terminals_are_watched_and_only_during_the_run(monkeypatch):
    outer, inner = pty.openpty()
    with os.fdopen(inner, "w") as terminal, os.fdopen(outer), StringIO() as file:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", file)
        with StopRequest():
            assert isinstance(sys.stdout, Terminal)
            assert sys.stderr is file
        assert (sys.stdout, sys.stderr) == (terminal, file)
        monkeypatch.undo()


# A process whose main thread runs code in C, in which no handler of Python is called, or a loop.
BUSY = """
import hashlib, sys, time
from rl4p.runs.signals import AT_FORCED_END, StopRequest
AT_FORCED_END += [lambda: 1 / 0, lambda: print("farewell", flush=True)]
with StopRequest(lambda: "The last words.", seconds=0.3) as request:
    print("ready", flush=True)
    while sys.argv[1] == "c after the first" and request.received is None:
        time.sleep(0.01)
    if sys.argv[1][0] == "c":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    while sys.argv[1] == "python" or request.received is None:
        time.sleep(0.01)
    request.answered()
    time.sleep(1)  # saves
    print("saved", flush=True)
"""


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("work", "signals", "exit_code", "output", "words"),
    [
        ("c", [signal.SIGTERM], 3, "farewell\n", "The last words."),
        ("python", [signal.SIGTERM], 3, "farewell\n", "The last words."),
        ("c", [signal.SIGINT, signal.SIGINT], 1, "farewell\n", "The last words."),
        ("c after the first", [signal.SIGINT, signal.SIGINT], 1, "farewell\n", "The last words."),
        ("answers", [signal.SIGTERM], 0, "saved\n", ""),
    ],
)
def test_work_that_does_not_end_in_time_is_ended(work, signals, exit_code, output, words):
    with subprocess.Popen(
        [sys.executable, "-c", BUSY, work],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for number in signals:
                process.send_signal(number)
                if len(signals) > 1:
                    time.sleep(0.3)  # two of the same are one if they wait together
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, errors.strip()) == (exit_code, output, words)


ERRORS = [
    UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    BrokenPipeError(errno.EPIPE, "Broken pipe"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error"),
    ValueError("I/O operation on closed file"),
    KeyError("time/step"),
    TypeError("unsupported operand"),
    ZeroDivisionError("division by zero"),
    RecursionError("maximum recursion depth exceeded"),
]
IDS = [f"{type(each).__name__}-{i}" for i, each in enumerate(ERRORS)]


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_the_first_error_of_a_hook_is_a_warning_and_later_ones_are_ignored(error, caplog):
    calls = []

    def fails(info):
        calls.append(info.step)
        raise error

    fails.every = 2
    hook = Tolerated(fails, "The view")
    assert hook.every == 2
    for step in (2, 4):
        hook(SimpleNamespace(step=step))
    assert calls == [2, 4]
    (message,) = caplog.messages
    assert message == f"The view failed, and the run continues: {error!r}"


@pytest.mark.parametrize("error", [InputError("x is wrong"), RunError("No room."), SystemExit(3)])
def test_errors_that_the_user_must_see_are_raised(error, caplog):
    def fails(info):
        raise error

    fails.every = 1
    with pytest.raises(type(error)):
        Tolerated(fails, "The view")(SimpleNamespace(step=1))
    assert not caplog.messages


def test_each_part_has_its_own_warning(caplog):
    tolerance = Tolerance()
    for name in ("a", "b", "a"):
        with tolerance.of(name):
            raise ValueError(name)
    assert tolerance.failed == {"a", "b"}
    assert len(caplog.messages) == 2


class Broken(io.StringIO):
    """A stream whose writes fail."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("error", ERRORS, ids=IDS)
def test_a_terminal_that_fails_ends_neither_a_run_nor_a_job(error, caplog, monkeypatch):
    """Of the bar and of the samples, each has a sentence; an output that nobody reads has one."""
    discarded = []
    monkeypatch.setattr("rl4p.runs.signals.discard_output", lambda: discarded.append(1))
    bar = ProgressBar(10, 1, 1)
    bar.console.file = Broken(error)
    with bar:
        bar.begin(0, {"eval/a/pass_at_1": 0.5})
        for step in (1, 2):
            bar(info(step))
    if isinstance(error, BrokenPipeError):
        assert caplog.messages == ["Nobody reads the output any more, and the run continues."]
        assert discarded == [1]
    else:
        failed = [message.partition(" failed")[0] for message in caplog.messages]
        assert failed == ["The progress bar", "Printing samples"]
    caplog.clear()
    console = SimpleNamespace(is_terminal=False, print=Broken(error).write)
    responses = ResponseBar(bar.console, 10, 0)
    responses.console = console
    with responses:
        for done in range(1, 11):
            responses.show(done)
    assert len(caplog.messages) == 1
