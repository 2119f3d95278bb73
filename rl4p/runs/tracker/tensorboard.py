"""A tracker that writes event files for TensorBoard, with tensorboardX (extra `tensorboard`)."""

import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.protocols.hook import Mirror
from rl4p.runs.record import Record
from rl4p.runs.tracker.background import BackgroundMirror
from rl4p.runs.tracker.description import Description
from rl4p.runs.tracker.steps import TimedSteps

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
        for step, milliseconds, metrics in self._steps.new():
            if not self._times:
                self._begin(list(metrics))
            self._times[step] = milliseconds / 1000
            event = _messages().Event()
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
            self._write(_messages().Event(summary=text(name, shown)), sample["step"])
        if self._times:
            self._write(_messages().Event(summary=self._end), max(self._times))
        self._writer.close()

    def abandon(self) -> None:
        with suppress(OSError, ValueError):  # it may be closed already
            self._writer.close()

    def _begin(self, names: list[str]) -> None:
        """Writes the parameters, for the view that compares them with the metrics."""
        from tensorboardX.summary import hparams, text

        restart = _messages().Event()
        restart.session_log.status = _messages().SessionLog.START
        compared = [name for name in names if name.startswith("eval/")] + ["reward/mean"]
        parameters = self._description.parameters
        experiment, session, self._end = hparams(parameters, dict.fromkeys(compared, 0.0))
        command = text("command", f"`{self._description.command}`")
        self._write(restart, 0)
        for summary in (experiment, session, command):
            self._write(_messages().Event(summary=summary), 0)

    def _write(self, event: Any, step: int) -> None:
        event.step = step
        event.wall_time = self._times.get(step, self._description.started)
        self._writer.write_event(event)


def _messages() -> Any:
    """Returns the messages of event files, which no type checker sees: they are made at import."""
    from tensorboardX.proto import event_pb2

    return event_pb2
