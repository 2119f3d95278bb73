"""A tracker that mirrors runs into MLflow, in an SQLite file that it creates or on a server.

MLflow creates its tables one by one in the file itself, and never again opens a file of which it
created only some. So a file is created here under another name and renamed when it is complete. A
process that is killed meanwhile leaves no database, and the next process creates it.
"""

import fcntl
import logging
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rl4p.base.address import holds_secret
from rl4p.base.errors import InputError
from rl4p.configuration.capability import Address
from rl4p.configuration.yaml_file import read_mapping
from rl4p.runs.tracker.background import BackgroundMirror, warn_of_variables
from rl4p.runs.tracker.mirror import MLflowMirror

if TYPE_CHECKING:
    from mlflow import MlflowClient


log = logging.getLogger(__name__)

SQLITE = "sqlite:///"
HEADER = b"SQLite format 3\0"
TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
# A column of MLflow's first table. Other programs too have a table with the name "experiments".
COLUMN = "SELECT 1 FROM pragma_table_info('experiments') WHERE name = 'lifecycle_stage'"
SECONDS_OF_SILENCE = 10.0  # a program that still creates a database has written to it since


def refuse_other_file(database: Path) -> None:
    """Refuses a file that is no database of MLflow, which would add its own tables to it."""
    problem = f"tracker.uri={SQLITE}{database} is not a database of MLflow: name a new file."
    if not database.exists():
        return
    if not database.is_file():
        raise InputError(problem)
    with database.open("rb") as file:
        header = file.read(len(HEADER))
    if header and header != HEADER:
        raise InputError(problem)
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute(TABLES)}
            begun = connection.execute(COLUMN).fetchone() is not None
    except sqlite3.OperationalError:  # it is in use
        return
    except sqlite3.DatabaseError as error:
        raise InputError(problem) from error
    if tables and not begun and tables != {"alembic_version"}:
        raise InputError(problem)


def complete(database: Path) -> bool:
    """Returns whether a database exists and has an experiment, as each that MLflow opens has."""
    if not database.exists():
        return False
    address = f"{database.as_uri()}?mode=rw"  # rolls back what an interrupted program has written
    with closing(sqlite3.connect(address, uri=True, timeout=60)) as connection:
        if ("experiments",) not in connection.execute(TABLES).fetchall():
            return False
        return connection.execute("SELECT 1 FROM experiments LIMIT 1").fetchone() is not None


def create_if_missing(database: Path, create: Callable[[str], Any]) -> None:
    """Creates a database unless a complete one exists. An incomplete one is set aside."""
    if complete(database):
        return
    with one_at_a_time(database):
        # Another program, such as a server, may create it just now.
        while not complete(database):
            written = database.stat() if database.exists() else None
            if written is None or not written.st_size:
                break
            if not 0 <= time.time() - written.st_mtime < SECONDS_OF_SILENCE:
                break
            time.sleep(0.1)
        if complete(database):
            return
        place = database.resolve()  # it may be a link
        prefix = f".{place.name}.rl4p."
        for leftover in place.parent.glob(f"{prefix}*/"):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        with TemporaryDirectory(prefix=prefix, dir=place.parent) as folder:
            first, copy = Path(folder) / "first.db", Path(folder) / "copy.db"
            create(SQLITE + str(first))
            # MLflow may keep connections to the first file, so a copy of it is renamed.
            with closing(sqlite3.connect(first)) as connection, copy.open("wb") as file:
                file.write(connection.serialize())
                os.fsync(file.fileno())
            if place.exists() and place.stat().st_size:
                # No version of MLflow opens an incomplete database.
                names = (f"{place.name}.incomplete{number or ''}" for number in count())
                aside = next(name for name in names if not place.with_name(name).exists())
                place.rename(place.with_name(aside))
                log.warning(
                    "%s is incomplete, because the program that created it was interrupted. It has"
                    " no experiment. It is now %s, and a new database takes its place.",
                    place,
                    aside,
                )
            copy.replace(place)


@contextmanager
def one_at_a_time(database: Path | None) -> Iterator[None]:
    """Locks a SQLite database, which several processes would otherwise create at once."""
    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    file = database.with_name(f".{database.name}.rl4p.lock")  # as no other program names its own
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


TARGET = "rl4p.runs.tracker.mlflow.MLflow"
# MLflow's variables, which decide where the configuration says nothing, and the defaults.
URI, NAME, ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
LOCAL, EXPERIMENT = "sqlite:///outputs/mlflow.db", "rl4p"
MEASURES = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
# Variables that have no effect. All others are read by MLflow's client, such as user and password.
WITHOUT_EFFECT = ("MLFLOW_RUN_ID", "MLFLOW_RUN_NAME", "MLFLOW_RUN_CONTEXT")
WHY = "a run is found in MLflow by its tag rl4p.run, and named after its overrides."
CREATION_SECONDS = 60.0  # of a local database, on a busy machine
PARENT_VARIABLE = "RL4P_PARENT_RUN_ID"  # holds the id of the sweep's run
# Tag of an experiment: its kind, which selects the view "Model training". MLflow 3.17 reads it only
# without the switch "GenAI | Model training"; with it, the link or the last choice decides.
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"
# The user's variables take precedence. By default a request to a dead server takes four minutes.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # MLflow logs a traceback of errors that it also raises
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
# Each connection to a file is closed after its use. MLflow's own pool leaves them to the garbage
# collector, at which Python 3.13 warns. The sizes are of a pool that keeps some.
POOL, NO_POOL = "MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool"
SIZES = ("MLFLOW_SQLALCHEMYSTORE_POOL_SIZE", "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW")


@dataclass(frozen=True, kw_only=True)
class MLflow:
    """A tracker that mirrors runs into MLflow in a separate thread, so that a run does not wait.

    Attributes:
      uri: the tracking store: ``sqlite:///PATH`` relative to the working directory,
        ``sqlite:////PATH`` absolute, or the address of a server; None is MLFLOW_TRACKING_URI, or
        else `LOCAL`. Credentials belong in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
      experiment: the MLflow experiment of the runs; None is MLFLOW_EXPERIMENT_NAME, or else the
        experiment with the id MLFLOW_EXPERIMENT_ID, or else `EXPERIMENT`.
      close_timeout_seconds: how long the end of a run may wait for unsent data; at least 60 s while
        a local database is created.
      system_metrics: whether MLflow measures the machine (CPU, memory, disk, network, NVIDIA GPUs
        with pynvml) every 10 seconds, under ``system/``; None is
        MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING, or else false.
      upload_checkpoints: whether to upload the newest checkpoint at the end of the run. MLflow
        shows the path of the checkpoints in any case.
      register: the name under which a run that finishes registers its policy, exported as a Hugging
        Face folder, as a new version of a model; None to register nothing.
      upload_timeout_seconds: how long the end of a run may wait for the uploads of these two.
    """

    uri: Address | None = None
    experiment: str | None = None
    close_timeout_seconds: float = 10.0
    system_metrics: bool | None = None
    upload_checkpoints: bool = False
    register: str | None = None
    upload_timeout_seconds: float = 3600.0

    def __post_init__(self):
        key = "tracker.uri"
        if self.uri is None:
            key = URI
            object.__setattr__(self, "uri", os.environ.get(URI) or LOCAL)
        host_and_port = re.fullmatch(r"[\w.-]+:\d+(/.*)?", str(self.uri))
        if host_and_port or not urlsplit(self.uri).scheme:
            address = f"http://{self.uri}" if host_and_port else "sqlite:///PATH or http://..."
            raise InputError(f"{key}={self.uri} has no scheme: write {address}")
        if holds_secret(str(self.uri)):
            raise InputError(
                f"{key} contains a password or a token, which would be saved with the run: set"
                " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
            )
        if self.experiment == "":
            raise InputError("tracker.experiment is empty: write a name, or null.")
        if self.register is not None and not set(self.register).isdisjoint("/:"):
            raise InputError(
                f"tracker.register={self.register} contains / or :, which MLflow does not allow in"
                " the name of a model: choose another name."
            )
        if self.system_metrics is None:
            measures = os.environ.get(MEASURES, "").lower() in ("true", "1")  # as MLflow reads it
            object.__setattr__(self, "system_metrics", measures)
        if self._database:
            refuse_other_file(self._database)
            object.__setattr__(self, "uri", SQLITE + str(self._database))

    @property
    def _database(self) -> Path | None:
        is_file = str(self.uri).startswith(SQLITE)
        return Path(str(self.uri).removeprefix(SQLITE)).absolute() if is_file else None

    def open(self, folder: Path) -> BackgroundMirror:
        warn_of_variables(WITHOUT_EFFECT, WHY)
        trusted = read_mapping(folder / "config.yaml").get("trusted_targets") or ()
        parent = os.environ.get(PARENT_VARIABLE)
        uploads = self.upload_checkpoints or self.register is not None
        return BackgroundMirror(
            folder,
            lambda: self.mirror(folder, parent, live=True, trusted=tuple(trusted)),
            name=f"MLflow at {self.uri}",
            close_timeout_seconds=self.close_timeout_seconds,
            creation_seconds=CREATION_SECONDS if self._database else 0.0,
            upload_timeout_seconds=self.upload_timeout_seconds if uploads else 0.0,
            repeat=f"; send it with: python -m rl4p.send run={folder.resolve()}",
        )

    def mirror(
        self,
        folder: Path,
        parent: str | None = None,
        *,
        live: bool = False,
        trusted: tuple[str, ...] = (),
    ) -> MLflowMirror:
        """Returns a mirror of a run folder, connected to the store; see `MLflowMirror`.

        Args:
          live: whether the run is active in this process, so that the machine can be measured.
        """
        return MLflowMirror(
            *self.connect(),
            folder,
            parent,
            system_metrics=live and bool(self.system_metrics),
            upload_checkpoints=self.upload_checkpoints,
            register=self.register,
            trusted=trusted,
        )

    def client(self) -> "MlflowClient":
        """Returns a client; creates a SQLite database that does not exist, whole or not at all."""
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        if self._database and not any(map(os.environ.get, SIZES)):
            os.environ.setdefault(POOL, NO_POOL)
            named = logging.getLogger("mlflow.store.db.utils")  # which logs the options of a pool
            named.setLevel(logging.WARNING)
        import mlflow

        if self._database:
            create_if_missing(
                self._database,
                lambda uri: mlflow.MlflowClient(uri).search_experiments(max_results=1),
            )
        return mlflow.MlflowClient(self.uri)

    def connect(self) -> "tuple[MlflowClient, str]":
        """Returns a client and the id of the experiment, creating store and experiment if needed.

        Waits for the store, and raises any error of MLflow and of the libraries that it uses.
        """
        client, name = self.client(), self.experiment or os.environ.get(NAME)
        with one_at_a_time(self._database):
            if name is None and (number := os.environ.get(ID)):
                experiment = client.get_experiment(number)
            else:
                experiment = client.get_experiment_by_name(name := name or EXPERIMENT)
            if experiment is None:
                # By default, MLflow puts the artifacts of SQLite into the working directory.
                artifacts = self._database and (self._database.parent / "mlartifacts").as_uri()
                made = client.create_experiment(str(name), artifacts, tags={KIND: TRAINING})
                return client, made
            if KIND not in experiment.tags:  # made by hand
                client.set_experiment_tag(experiment.experiment_id, KIND, TRAINING)
            return client, experiment.experiment_id
