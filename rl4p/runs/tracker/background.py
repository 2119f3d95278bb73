"""A thread that mirrors a run folder, so that the run never waits for a tracker."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rl4p.base.terminal import write
from rl4p.protocols.hook import Mirror
from rl4p.runs.record import Record

log = logging.getLogger(__name__)

# A batch of metrics costs a mirror some milliseconds whatever its size, so fast steps share one.
SECONDS_BETWEEN_BATCHES = 10.0
SECONDS_BETWEEN_ATTEMPTS = 30.0
SECONDS_FOR_A_SILENT_STORE = 1.0  # at the end; it has had its time before
LATE = "it was too slow or did not answer"


class BackgroundMirror:
    """A `TrackedRun` with a thread that follows the record in the run folder.

    The thread reads the record instead of a queue, so nothing can overflow or be lost. When a store
    is reachable again after a failure, it receives everything that it missed.
    """

    def __init__(
        self,
        folder: Path,
        connect: Callable[[], Mirror],
        *,
        name: str,
        close_timeout_seconds: float,
        creation_seconds: float = 0.0,
        upload_timeout_seconds: float = 0.0,
        repeat: str = "",
        between_seconds: float = SECONDS_BETWEEN_BATCHES,
        without_news: bool = False,
    ):
        """Starts a daemon thread, which cannot keep the process alive if it hangs.

        Args:
          connect: returns a mirror. Called in the thread, again after every error.
          close_timeout_seconds: how long `finish` waits for the data; a second if the store has
            already been silent for as long.
          creation_seconds: how long a store may need until the first connection, which creates it;
            so long it is not silent.
          upload_timeout_seconds: how long `finish` then waits for the requested uploads; 0 if there
            are none.
          repeat: the end of the warning about missing data, which says how to send it.
          without_news: whether to send batches between two steps too.
        """
        self._folder = folder.resolve()
        self._connect = connect
        self._name, self._repeat = name, repeat
        self._between, self._patience = between_seconds, between_seconds if without_news else None
        self._timeouts = close_timeout_seconds, upload_timeout_seconds
        self._creation = creation_seconds  # 0 after the first connection
        self._files: dict[str, None] = {}  # to send; a dict keeps the order and has atomic calls
        self._grown = False  # until the first step, a resumed run may still truncate its record
        self._status = "failed"
        self._where = ""
        self._asked: float | None = None  # the time at which the store was asked
        self._silence = 0.0  # the seconds of the last attempt, if it failed
        self._failure: str | None = LATE
        self._news, self._closing = threading.Event(), threading.Event()
        self._sent, self._ended = threading.Event(), threading.Event()
        self._news.set()
        threading.Thread(target=self._work, name="tracker", daemon=True).start()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._grown = True
        self._news.set()

    def artifact(self, path: Path) -> None:
        self._files[str(path.resolve().relative_to(self._folder))] = None
        self._news.set()

    def finish(self, status: str) -> bool:
        self._status = status
        self._closing.set()
        self._news.set()
        close_timeout, upload_timeout = self._timeouts
        close_timeout = max(close_timeout, self._creation)
        asked = self._asked
        silence = 0.0 if asked is None else time.monotonic() - asked
        if max(self._silence, silence) >= close_timeout:
            close_timeout = min(close_timeout, SECONDS_FOR_A_SILENT_STORE)
        if self._sent.wait(close_timeout):
            self._ended.wait(upload_timeout)
        if self._where and not self._failure:
            write(self._where)
        if self._failure:
            lacking = "%s lacks a part of this run (%s)%s"
            log.warning(lacking, self._name, self._failure, self._repeat)
        return not self._failure

    def _work(self) -> None:
        mirror, warned, last = None, False, False
        while not last:
            self._news.wait(self._patience)
            self._news.clear()
            last = self._closing.is_set()
            pause = self._between
            asked = self._asked = time.monotonic()
            try:
                mirror, self._creation = mirror or self._connect(), 0.0
                if self._grown:
                    mirror.send_metrics()
                for name in list(self._files):
                    mirror.send_files(name)
                    del self._files[name]
                self._failure, self._silence = LATE, 0.0
                if last:
                    mirror.close(self._status)
                    self._where = mirror.where()
                    # From now on `finish` waits for the requested uploads alone.
                    uploads = self._timeouts[1] > 0
                    self._failure = LATE if uploads else None
                    self._sent.set()
                    if uploads:
                        mirror.upload(self._status)
                        self._failure = None
            except Exception as error:  # noqa: BLE001 - the run continues after any error
                self._failure, self._silence = reason(error), time.monotonic() - asked
                if mirror is not None:
                    mirror.abandon()
                mirror, pause = None, SECONDS_BETWEEN_ATTEMPTS
                self._news.set()
                if not warned and not self._closing.is_set():
                    told = "The run continues without %s until it answers: %s"
                    log.warning(told, self._name, self._failure)
                warned = True
            self._asked = None
            self._closing.wait(pause)
        self._sent.set()
        self._ended.set()


def warn_of_variables(names: Iterable[str], reason: str) -> None:
    """Names the environment variables among these that are set, and have no effect."""
    if present := [name for name in names if os.environ.get(name)]:
        log.warning("%s has no effect: %s", " ".join(present), reason)


def reason(error: BaseException) -> str:
    """Returns the original cause: "ConnectionRefusedError: [Errno 111] Connection refused".

    MLflow wraps it in several errors, each of which quotes the error below in full.
    """
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


@dataclass
class TimedSteps:
    """The steps of a record, each with the time at which it ended.

    The time is the start of the run plus the ``time/step`` of all steps so far, in milliseconds. It
    depends on the record alone, so a mirror that is written again has the same times.
    """

    folder: Path
    milliseconds: float
    offset: int = 0  # in metrics.jsonl

    def new(self) -> list[tuple[int, float, dict[str, float]]]:
        """Returns the steps that were recorded since the last call: (step, time, metrics)."""
        rows, self.offset = Record(self.folder).metrics_from(self.offset)
        steps = []
        for row in rows:
            self.milliseconds += 1000 * row.get("time/step", 0.0)
            steps.append((int(row.pop("step")), self.milliseconds, row))
        return steps
