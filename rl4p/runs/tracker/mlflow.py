"""MLflow as the mirror of runs: in an SQLite file of its own making, or on a server."""

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
PARENT_VARIABLE = "RL4P_PARENT_RUN_ID"  # the sweep that the runs of this process belong to
# A batch costs 15 ms of a core, whatever it holds: fast steps share one.
SECONDS_BETWEEN_BATCHES = 2.0
SECONDS_BETWEEN_ATTEMPTS = 30.0
LATE = "it was too slow, or never answered"
# What the user has set stays. By default one request to a server that is down takes four minutes.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it logs a traceback where an error is raised as well
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """Mirrors runs into MLflow from a thread of its own, so that a run never waits for it.

    Attributes:
      uri: of the tracking store: ``sqlite:///`` and a path, from the working directory unless it
        begins with another slash, or the address of a server. Passwords come in MLflow's own
        variables, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
      experiment: the name that the runs are listed under.
      close_timeout_seconds: how long the end of a run may wait for what is not sent yet.
    """

    uri: str
    experiment: str = "rl4p"
    close_timeout_seconds: float = 10.0

    def __post_init__(self):
        if not urlsplit(self.uri).scheme:
            raise InputError(
                f"tracker.uri={self.uri} names no kind of store: write sqlite:///PATH or http://..."
            )
        if urlsplit(self.uri).password:
            raise InputError(
                "tracker.uri holds a password, which would be kept with the run: set"
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
        """A client and the id of the experiment, both made where they are not there yet.

        Waits for the store; raises whatever MLflow and the libraries below it raise.
        """
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        import mlflow

        with _one_at_a_time(self._database):
            client = mlflow.MlflowClient(self.uri)
            if (found := client.get_experiment_by_name(self.experiment)) is not None:
                return client, found.experiment_id
            # MLflow would put the artifacts of an SQLite store into the working directory.
            artifacts = self._database and (self._database.parent / "mlartifacts").as_uri()
            return client, client.create_experiment(self.experiment, artifacts)


@contextmanager
def _one_at_a_time(database: Path | None) -> Iterator[None]:
    """Processes that create and migrate one fresh SQLite database together would ruin it."""
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{database}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class BackgroundMirror:
    """A `TrackedRun`: a thread that follows the record in the run folder.

    The thread reads the record rather than a queue: nothing can overflow or be lost, and a store
    that was away for an hour gets that hour when it is back.
    """

    def __init__(self, tracker: MLflow, folder: Path):
        """Starts the thread. It is a daemon: one that hangs does not keep the process alive."""
        self._tracker = tracker
        self._folder = folder.resolve()
        self._parent = os.environ.get(PARENT_VARIABLE)
        self._files: dict[str, None] = {}  # to send soon; a dict for its order and atomic calls
        self._grown = False  # before the first step a resumed run may still cut its record
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
                "MLflow at %s lacks some of this run (%s); send it by: python -m rl4p.send %s",
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
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
                self._failure = reason(error)
                mirror, pause = None, SECONDS_BETWEEN_ATTEMPTS
                self._news.set()
                if not warned and not last:
                    log.warning(
                        "The run goes on without MLflow at %s until it answers: %s",
                        self._tracker.uri,
                        self._failure,
                    )
                warned = True
            self._closing.wait(pause)
        self._ended.set()


def reason(error: BaseException) -> str:
    """What went wrong first, in one line: "ConnectionRefusedError: [Errno 111] Connection refused".

    MLflow wraps it in several errors, each quoting the one below with all its addresses.
    """
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
