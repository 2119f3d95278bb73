"""Tests the thread with a mirror in memory; test_mlflow.py tests it with a real store."""

import threading
import time

import pytest

from rl4p.runs.tracker import background
from rl4p.runs.tracker.background import BackgroundMirror, reason


class Memory:
    """A mirror that records its calls, and fails or waits on request."""

    def __init__(self, *, broken=(), slow=None):
        self.calls, self.broken, self.slow = [], set(broken), slow
        self.uploading = threading.Event()

    def _called(self, name):
        self.calls.append(name)
        if name in self.broken:
            raise OSError("no space left")
        if self.slow is not None and name == "upload":
            self.uploading.set()
            self.slow.wait()

    def send_metrics(self):
        self._called("send_metrics")

    def send_files(self, *patterns):
        self._called("send_files")

    def close(self, status):
        self._called(f"close {status}")

    def upload(self, status):
        self._called("upload")

    def abandon(self):
        self.calls.append("abandon")


def begin(record, mirror, **options):
    options = {"close_timeout_seconds": 60.0, "repeat": "; try again", **options}
    return BackgroundMirror(record.folder, lambda: mirror, name="Memory", **options)


def test_nothing_is_uploaded_unless_it_was_requested(record):
    mirror = Memory()
    assert begin(record, mirror).finish("stopped")
    assert mirror.calls == ["close stopped"]


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


def test_an_upload_that_ends_in_time_is_complete(record, caplog):
    mirror = Memory()
    assert begin(record, mirror, upload_timeout_seconds=60.0).finish("finished")
    assert not caplog.records


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


def test_a_store_that_still_owes_its_first_answer_gets_little_more(record, monkeypatch):
    monkeypatch.setattr(background, "SECONDS_FOR_A_SILENT_STORE", 0.01)
    answer = threading.Event()

    def connect():
        answer.wait()
        return Memory()

    tracked = BackgroundMirror(record.folder, connect, name="Memory", close_timeout_seconds=0.1)
    while background.seconds_since(tracked._asked) < 0.1:
        time.sleep(0.01)
    waited = []
    monkeypatch.setattr(tracked._sent, "wait", waited.append)
    assert not tracked.finish("finished")
    answer.set()
    assert tracked._ended.wait(60)
    assert waited == [0.01]


def test_the_reason_is_the_first_error():
    error = RuntimeError("a long story")
    error.__context__ = ConnectionRefusedError(111, "Connection refused")
    assert reason(error) == "ConnectionRefusedError: [Errno 111] Connection refused"
