"""Tests the thread with a mirror in memory; test_mlflow.py tests it with a real store."""

import threading
import time

import pytest

from rl4p.protocols.hook import Mirror
from rl4p.runs.tracker import background
from rl4p.runs.tracker.background import BackgroundMirror, TimedSteps, reason
from tests.support.trackers import wait_for


class Memory(Mirror):
    """A mirror that records its calls, and fails or waits on request.

    Attributes:
      broken: the calls that fail; the first one of `once`.
    """

    def __init__(self, *, broken=(), once=(), slow=None):
        self.calls, self.broken, self.once, self.slow = [], set(broken), set(once), slow
        self.uploading = threading.Event()

    def _called(self, name):
        self.calls.append(name)
        if name in self.broken | self.once:
            self.once.discard(name)
            raise OSError("no space left")
        if self.slow is not None and name == "upload":
            self.uploading.set()
            self.slow.wait()

    def send_metrics(self):
        self._called("send_metrics")

    def send_files(self, *patterns):
        self._called(" ".join(("send_files", *patterns)))

    def close(self, status):
        self._called(f"close {status}")

    def upload(self, status):
        self._called("upload")

    def where(self):
        return ""

    def abandon(self):
        self.calls.append("abandon")


def begin(record, mirror, **options):
    options = {"close_timeout_seconds": 60.0, "repeat": "; try again", **options}
    return BackgroundMirror(record.folder, lambda: mirror, name="Memory", **options)


@pytest.mark.parametrize("broken", [False, True])
def test_the_end_says_where_the_run_is_shown_if_it_is(broken, record, capsys):
    mirror = Memory(broken=["close finished"] if broken else [])
    mirror.where = lambda: "The run: http://host"
    begin(record, mirror, close_timeout_seconds=0.5 if broken else 60.0).finish("finished")
    assert capsys.readouterr().out == ("" if broken else "The run: http://host\n")


def test_what_was_requested_is_uploaded_and_nothing_else(record, caplog):
    mirror = Memory()
    assert begin(record, mirror).finish("stopped")
    assert mirror.calls == ["close stopped"]
    assert begin(record, mirror, upload_timeout_seconds=60.0).finish("finished")
    assert mirror.calls == ["close stopped", "close finished", "upload"]
    assert not caplog.records


def test_uploads_have_a_time_of_their_own(record, caplog):
    mirror = Memory(slow=threading.Event())
    tracked = begin(record, mirror, upload_timeout_seconds=0.05)
    assert not tracked.finish("finished")
    assert mirror.uploading.wait(60)  # its thread may be later than the time for uploads
    assert mirror.calls == ["close finished", "upload"]
    (warning,) = caplog.records
    assert warning.getMessage() == (
        "Memory lacks a part of this run (it was too slow or did not answer); try again"
    )
    mirror.slow.set()


def test_a_file_that_could_not_be_sent_is_sent_again(record):
    mirror = Memory(once=["send_files extra.txt"])
    tracked = begin(record, mirror)
    tracked.artifact(record.folder / "extra.txt")
    wait_for(lambda: "abandon" in mirror.calls)
    assert tracked.finish("finished")
    sent = ["send_files extra.txt"] * 2
    assert [call for call in mirror.calls if call != "send_metrics"] == [
        *(sent[0], "abandon", sent[1], "close finished")
    ]


@pytest.mark.parametrize("broken", ["close finished", "upload"])
def test_an_error_at_the_end_is_reported(record, caplog, broken):
    mirror = Memory(broken=[broken])
    assert not begin(record, mirror, upload_timeout_seconds=60.0).finish("finished")
    assert mirror.calls[-1] == "abandon"
    (warning,) = caplog.records
    assert "lacks a part of this run (OSError: no space left); try again" in warning.getMessage()


def no_answer():
    time.sleep(0.2)
    raise TimeoutError("no answer")


def refusal():
    raise ConnectionRefusedError("nobody listens")


@pytest.mark.parametrize(
    ("connect", "patience", "waits"),
    [(no_answer, 0.1, 0.01), (no_answer, 60.0, 60.0), (refusal, 60.0, 60.0)],
)
def test_a_store_that_was_silent_for_its_time_gets_little_more(
    record, connect, patience, waits, monkeypatch
):
    monkeypatch.setattr(background, "SECONDS_FOR_A_SILENT_STORE", 0.01)
    failed, waited = threading.Event(), []
    monkeypatch.setattr(background.log, "warning", lambda *_: failed.set())
    tracked = BackgroundMirror(
        record.folder, connect, name="Memory", close_timeout_seconds=patience
    )
    assert failed.wait(60)
    wait = tracked._sent.wait
    monkeypatch.setattr(tracked._sent, "wait", lambda timeout: waited.append(timeout) or wait(10))
    assert not tracked.finish("finished")
    assert waited == [waits]


@pytest.mark.parametrize(("creation", "waits"), [(0.0, 0.01), (60.0, 60.0)])
def test_a_store_that_still_owes_its_first_answer_gets_little_more(
    record, creation, waits, monkeypatch
):
    monkeypatch.setattr(background, "SECONDS_FOR_A_SILENT_STORE", 0.01)
    answer = threading.Event()

    def connect():
        answer.wait()
        return Memory()

    tracked = BackgroundMirror(
        record.folder,
        connect,
        name="Memory",
        close_timeout_seconds=0.1,
        creation_seconds=creation,
    )
    while (asked := tracked._asked) is None or time.monotonic() - asked < 0.1:
        time.sleep(0.01)
    waited = []
    monkeypatch.setattr(tracked._sent, "wait", waited.append)
    assert not tracked.finish("finished")
    answer.set()
    assert tracked._ended.wait(60)
    assert waited == [waits]


def test_a_created_store_that_is_silent_gets_little_more(record, monkeypatch):
    monkeypatch.setattr(background, "SECONDS_FOR_A_SILENT_STORE", 0.01)
    tracked = begin(record, Memory(), close_timeout_seconds=5.0, creation_seconds=60.0)
    wait_for(lambda: not tracked._creation)
    tracked._silence, waited = 6.0, []
    monkeypatch.setattr(tracked._sent, "wait", waited.append)
    tracked.finish("finished")
    assert waited == [0.01]


def test_the_reason_is_the_first_error():
    error = RuntimeError("a long story")
    error.__context__ = ConnectionRefusedError(111, "Connection refused")
    assert reason(error) == "ConnectionRefusedError: [Errno 111] Connection refused"


def test_a_step_ends_after_the_times_of_all_steps_so_far(record):
    record.log(0, {"a": 0.0})
    record.log(1, {"a": 1.0, "time/step": 0.5})
    steps = TimedSteps(record.folder, 1000)
    assert steps.new() == [(0, 1000.0, {"a": 0.0}), (1, 1500.0, {"a": 1.0, "time/step": 0.5})]
    assert steps.new() == []
    record.log(2, {"time/step": 2.0})
    assert steps.new() == [(2, 3500.0, {"time/step": 2.0})]
