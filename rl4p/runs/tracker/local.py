"""Trackers that need no server: none, several at once, a table, and event files for TensorBoard."""

import csv
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.capability import Address
from rl4p.protocols.hook import Mirror, TrackedRun, Tracker
from rl4p.runs.record import Record, replace_file
from rl4p.runs.signals import Tolerance
from rl4p.runs.tracker.background import BackgroundMirror, TimedSteps
from rl4p.runs.tracker.description import Description


@dataclass(frozen=True, kw_only=True)
class NoTracker:
    """A tracker that mirrors nothing."""

    def open(self, folder: Path) -> "SeveralRuns":
        return SeveralRuns({}, folder)


@dataclass(frozen=True, kw_only=True)
class Several:
    """Several trackers, each of which mirrors the same record.

    Attributes:
      uri, experiment: the store and the experiment of MLflow, under the same keys as in
        `tracker=mlflow`. The YAML of MLflow in ``conf/tracker/with`` refers to them.
      trackers: the trackers by name.
    """

    uri: Address | None = None
    experiment: str | None = None
    trackers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not self.trackers:
            raise InputError("tracker=several has no tracker: write tracker/with=[mlflow,csv].")

    def open(self, folder: Path) -> "SeveralRuns":
        return SeveralRuns(self.trackers, folder)


class SeveralRuns:
    """A `TrackedRun` that passes every call to several others and survives their errors."""

    def __init__(self, trackers: Mapping[str, Tracker], folder: Path):
        """Opens the trackers. An `InputError` is raised, because the user can correct it."""
        self._runs: dict[str, TrackedRun] = {}
        self._tolerance = Tolerance()
        for name, tracker in trackers.items():
            with self._tolerance.of(f"The tracker {name}"):
                self._runs[name] = tracker.open(folder)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for name, run in self._runs.items():
            with self._tolerance.of(f"The tracker {name}"):
                run.log(step, metrics)

    def artifact(self, path: Path) -> None:
        for name, run in self._runs.items():
            with self._tolerance.of(f"The tracker {name}"):
                run.artifact(path)

    def finish(self, status: str) -> bool:
        """Ends the trackers side by side, so that they wait as long as the slowest one."""

        def ended(name: str) -> bool:
            with self._tolerance.of(f"The tracker {name}"):
                return self._runs[name].finish(status)
            return False

        with ThreadPoolExecutor(max(1, len(self._runs))) as pool:
            done = list(pool.map(ended, self._runs))
        return all(done) and not self._tolerance.failed


FILE = "metrics.csv"


@dataclass(frozen=True, kw_only=True)
class CSV:
    """A tracker that writes ``metrics.csv`` into the run folder: one row per step.

    Attributes:
      close_timeout_seconds: how long the end of a run may wait for the file.
    """

    close_timeout_seconds: float = 10.0

    def open(self, folder: Path) -> BackgroundMirror:
        return BackgroundMirror(
            folder,
            lambda: self.mirror(folder),
            name=f"{folder / FILE}",
            close_timeout_seconds=self.close_timeout_seconds,
        )

    def mirror(self, folder: Path) -> "Table":
        return Table(folder)


class Table(Mirror):
    """The metrics of a run folder as a table. A metric that a step lacks is an empty cell."""

    def __init__(self, folder: Path):
        self._path = folder / FILE
        self._steps = TimedSteps(folder, 0)
        self._rows: list[dict[str, float]] = []
        self._columns: list[str] = []
        self._written = 0  # rows in the file

    def send_metrics(self) -> None:
        """Appends the new rows; rewrites the file at first, and when there are new columns."""
        self._rows += [{"step": step, **metrics} for step, _, metrics in self._steps.new()]
        new = self._rows[self._written :]
        columns = list(dict.fromkeys([*self._columns, *(name for row in new for name in row)]))
        if columns != self._columns:
            self._columns, self._written = columns, 0
            replace_file(self._path, "")
        if not new:
            return
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            if self._written == 0:
                writer.writeheader()
            writer.writerows(self._rows[self._written :])
        self._written = len(self._rows)

    def close(self, status: str) -> None:
        self.send_metrics()


FOLDER = "tensorboard"
SAMPLES = 20  # the newest samples, shown as text


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """A tracker that writes ``tensorboard/NAME`` into the run folder.

    ``tensorboard --logdir outputs`` shows all runs below it. NAME says what the run is, such as
    "advantage=rloo seed=2".

    Attributes:
      close_timeout_seconds: how long the end of a run may wait for the file.
    """

    close_timeout_seconds: float = 10.0

    def __post_init__(self):
        if find_spec("tensorboardX") is None:
            raise InputError("tracker=tensorboard needs tensorboardX: pip install tensorboardX.")

    def open(self, folder: Path) -> BackgroundMirror:
        return BackgroundMirror(
            folder,
            lambda: self.mirror(folder),
            name=f"TensorBoard in {folder / FOLDER}",
            close_timeout_seconds=self.close_timeout_seconds,
            repeat="; write it with: python -m rl4p.send tracker=tensorboard "
            f"run={folder.resolve()}",
        )

    def mirror(self, folder: Path) -> "EventFile":
        return EventFile(folder)


class EventFile(Mirror):
    """The event file of a run folder. The samples, which TensorBoard can show, follow at the end.

    The file is written anew from the record whenever the run is opened, so a resumed run has no
    step twice. A TensorBoard that shows the run at that time drops what it read before.
    """

    def __init__(self, folder: Path):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._messages: Any = event_pb2  # made at import, so no type checker sees them
        self._description = description = Description(folder)
        self._record = Record(folder)
        self._steps = TimedSteps(folder, 1000 * description.started)
        self._times: dict[int, float] = {}  # of the written steps, in seconds
        place = folder / FOLDER
        name = re.sub(r"[^\w=.,+ -]", "_", description.name).strip(". ") or "run"
        place = next(iter(sorted(place.glob("*/"))), place / name)  # keeps the name of the first
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob("*.tfevents.*"):
            old.unlink()
        self._writer = EventsWriter(str(place / "events"))
        self._writer.flush()

    def send_metrics(self) -> None:
        from tensorboardX.summary import hparams, text

        for step, milliseconds, metrics in self._steps.new():
            if not self._times:
                # The parameters come first, for the view that compares them with the metrics.
                restart = self._messages.Event()
                restart.session_log.status = self._messages.SessionLog.START
                self._write(restart, 0)
                compared = [name for name in metrics if name.startswith("eval/")] + ["reward/mean"]
                parameters = self._description.parameters
                experiment, session, self._end = hparams(parameters, dict.fromkeys(compared, 0.0))
                command = text("command", f"`{self._description.command}`")
                for summary in (experiment, session, command):
                    self._write(self._messages.Event(summary=summary), 0)
            self._times[step] = milliseconds / 1000
            event = self._messages.Event()
            for name, value in metrics.items():
                event.summary.value.add(tag=name, simple_value=value)
            self._write(event, step)
        self._writer.flush()

    def close(self, status: str) -> None:
        from tensorboardX.summary import text

        self.send_metrics()
        columns, rows = self._record.table_of_samples(SAMPLES)
        for row in rows:
            sample = {name: x for name, x in zip(columns, row, strict=True) if x is not None}
            shown = "\n\n".join(f"**{name}**: {value}" for name, value in sample.items())
            name = f"samples/{sample.get('id', 'sample')}"
            self._write(self._messages.Event(summary=text(name, shown)), sample["step"])
        if self._times:
            self._write(self._messages.Event(summary=self._end), max(self._times))
        self._writer.close()

    def abandon(self) -> None:
        with suppress(OSError, ValueError):  # it may be closed already
            self._writer.close()

    def _write(self, event: Any, step: int) -> None:
        event.step = step
        event.wall_time = self._times.get(step, self._description.started)
        self._writer.write_event(event)
