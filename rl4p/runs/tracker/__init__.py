"""Trackers: mirrors of a run's record for people to look at and compare runs in.

The record (`record.py`) is written first and is complete without any tracker, so a tracker may
fail, lag or be absent; `python -m rl4p.send` mirrors a run folder later.
"""

from pathlib import Path
from typing import Protocol


class TrackedRun(Protocol):
    """A run being mirrored. No call waits on a disk or a network, but `finish`, within a bound."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """A step is over; its line stands in ``metrics.jsonl``, which only grows from here on."""
        ...

    def artifact(self, path: Path) -> None:
        """A file of the run folder is worth showing now; at the end all of them are."""
        ...

    def finish(self, status: str) -> bool:
        """The run is over: "finished", "stopped" or "failed". True if the mirror is complete."""
        ...


class Tracker(Protocol):
    """What ``conf/tracker`` configures."""

    def open(self, folder: Path) -> TrackedRun:
        """Starts to mirror a run folder, or goes on with it; `Record.describe` comes before."""
        ...
