"""Trackers, which mirror the records of runs so that people can view and compare them.

The record (`record.py`) is written first and is complete without a tracker, so a tracker may fail,
lag or be absent. `python -m rl4p.send` mirrors a run folder later.
"""

from pathlib import Path
from typing import Protocol


class TrackedRun(Protocol):
    """A mirrored run. Only `finish` waits for a disk or a network, for a limited time."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Reports a step whose line is in ``metrics.jsonl``, which from now on is only appended."""
        ...

    def artifact(self, path: Path) -> None:
        """Requests to mirror a file of the run folder now; `finish` mirrors all files."""
        ...

    def finish(self, status: str) -> bool:
        """Ends the run: "finished", "stopped" or "failed". Returns whether all data was sent."""
        ...


class Tracker(Protocol):
    """The options of a tracker, configured by ``conf/tracker``."""

    def open(self, folder: Path) -> TrackedRun:
        """Starts or continues to mirror a run folder, after `Record.describe` was called."""
        ...
