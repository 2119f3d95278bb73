"""Tests the thread with a mirror in memory; test_mlflow.py tests it with a real store."""

import threading

import pytest

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


def test_the_reason_is_the_first_error():
    error = RuntimeError("a long story")
    error.__context__ = ConnectionRefusedError(111, "Connection refused")
    assert reason(error) == "ConnectionRefusedError: [Errno 111] Connection refused"
