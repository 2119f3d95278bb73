"""A tracker that writes the metrics as a table, for spreadsheets and for pandas."""

import csv
from dataclasses import dataclass
from pathlib import Path

from rl4p.protocols.hook import Mirror
from rl4p.runs.record import replace_file
from rl4p.runs.tracker.background import BackgroundMirror
from rl4p.runs.tracker.steps import TimedSteps

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
