"""A tracker that mirrors runs into MLflow, in an SQLite file that it creates or on a server."""

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rl4p.errors import InputError
from rl4p.runs.tracker.mirror import Mirror

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

SQLITE = "sqlite:///"
PARENT_VARIABLE = "RL4P_PARENT_RUN_ID"  # holds the id of the sweep's run
# A batch of any size costs 15 ms of a core, so fast steps share a batch.
SECONDS_BETWEEN_BATCHES = 2.0
SECONDS_BETWEEN_ATTEMPTS = 30.0
LATE = "it was too slow or did not answer"
# The user's variables take precedence. By default a request to a dead server takes four minutes.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # MLflow logs a traceback of errors that it also raises
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """A tracker that mirrors runs into MLflow in a separate thread, so that a run does not wait.

    Attributes:
      uri: the tracking store: ``sqlite:///PATH`` relative to the working directory,
        ``sqlite:////PATH`` absolute, or the address of a server. Credentials belong in
        MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
      experiment: the MLflow experiment of the runs.
      close_timeout_seconds: how long the end of a run may wait for unsent data.
    """

    uri: str
    experiment: str = "rl4p"
    close_timeout_seconds: float = 10.0

    def __post_init__(self):
        if not urlsplit(self.uri).scheme:
            raise InputError(
                f"tracker.uri={self.uri} has no scheme: write sqlite:///PATH or http://..."
            )
        if urlsplit(self.uri).password:
            raise InputError(
                "tracker.uri contains a password, which would be saved with the run: set"
                " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
            )
        if self._database:
            object.__setattr__(self, "uri", SQLITE + str(self._database))

    @property
    def _database(self) -> Path | None:
        is_file = self.uri.startswith(SQLITE)
        return Path(self.uri.removeprefix(SQLITE)).absolute() if is_file else None

    def open(self, folder: Path) -> "BackgroundMirror":
        return BackgroundMirror(self, folder)

    def connect(self) -> "tuple[MlflowClient, str]":
        """Returns a client and the id of the experiment, creating store and experiment if needed.

        Waits for the store, and raises any error of MLflow and of the libraries that it uses.
        """
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        import mlflow

        with _one_at_a_time(self._database):
            client = mlflow.MlflowClient(self.uri)
            if (found := client.get_experiment_by_name(self.experiment)) is not None:
                return client, found.experiment_id
            # By default MLflow puts the artifacts of an SQLite store into the working directory.
            artifacts = self._database and (self._database.parent / "mlartifacts").as_uri()
            return client, client.create_experiment(self.experiment, artifacts)


@contextmanager
def _one_at_a_time(database: Path | None) -> Iterator[None]:
    """Locks a SQLite database, which processes would corrupt if several created it at once."""
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{database}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class BackgroundMirror:
    """A `TrackedRun` with a thread that follows the record in the run folder.

    The thread reads the record instead of a queue, so nothing can overflow or be lost. When a store
    is reachable again after a failure, it receives everything that it missed.
    """

    def __init__(self, tracker: MLflow, folder: Path):
        """Starts a daemon thread, which cannot keep the process alive if it hangs."""
        self._tracker = tracker
        self._folder = folder.resolve()
        self._parent = os.environ.get(PARENT_VARIABLE)
        self._files: dict[str, None] = {}  # to send; a dict keeps the order and has atomic calls
        self._grown = False  # until the first step, a resumed run may still truncate its record
        self._status = "failed"
        self._failure: str | None = LATE
        self._news, self._closing, self._ended = (threading.Event() for _ in range(3))
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
        self._ended.wait(self._tracker.close_timeout_seconds)
        if self._failure:
            log.warning(
                "MLflow at %s lacks a part of this run (%s); send it with: python -m rl4p.send %s",
                self._tracker.uri,
                self._failure,
                self._folder,
            )
        return not self._failure

    def _work(self) -> None:
        mirror, warned, last = None, False, False
        while not last:
            self._news.wait()
            self._news.clear()
            last = self._closing.is_set()
            pause = SECONDS_BETWEEN_BATCHES
            try:
                if mirror is None:
                    mirror = Mirror(*self._tracker.connect(), self._folder, self._parent)
                if self._grown:
                    mirror.send_metrics()
                for name in list(self._files):
                    mirror.send_files(name)
                    del self._files[name]
                if last:
                    mirror.close(self._status)
                self._failure = None if last else LATE
            except Exception as error:  # noqa: BLE001 - the run continues after any error
                self._failure = reason(error)
                mirror, pause = None, SECONDS_BETWEEN_ATTEMPTS
                self._news.set()
                if not warned and not last:
                    log.warning(
                        "The run continues without MLflow at %s until it answers: %s",
                        self._tracker.uri,
                        self._failure,
                    )
                warned = True
            self._closing.wait(pause)
        self._ended.set()


def reason(error: BaseException) -> str:
    """Returns the original cause: "ConnectionRefusedError: [Errno 111] Connection refused".

    MLflow wraps it in several errors, each of which quotes the error below in full.
    """
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
