"""Tests that what only shows a run cannot end it, and that its first error is a sentence."""

import errno
import io
from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs.progress import ProgressBar
from rl4p.runs.tolerance import Tolerance, Tolerated
from rl4p.tools.bar import ResponseBar
from tests.runs.test_progress import info

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
    monkeypatch.setattr("rl4p.runs.tolerance.discard_output", lambda: discarded.append(1))
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
