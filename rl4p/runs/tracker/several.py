"""Several trackers for one run. A tracker that fails stops neither the run nor another tracker."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.capability import Address
from rl4p.protocols.hook import TrackedRun, Tracker
from rl4p.runs.tolerance import Tolerance


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
