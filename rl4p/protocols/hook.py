"""The protocols of hooks, and of trackers, which mirror the records of runs (`runs/tracker/`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # imports JAX, which trackers do not need
    from rl4p.base.types import Array, Episode, Rewards, TrainState, Trajectories
    from rl4p.model.policy import Policy


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """The record of one finished step, which hooks receive.

    Attributes:
      advantages_BT, loss_mask_BT: as in the `TrainingBatch`, if the loop passes them on.
    """

    step: int
    state: "TrainState"
    trajectories: "Trajectories"
    episodes: "Sequence[Episode]"
    rewards: "Rewards"
    metrics: dict[str, float]
    advantages_BT: "Array | None" = None
    loss_mask_BT: "Array | None" = None


class Hook(Protocol):
    """A side effect after every `every`-th step of the loop and after the last step."""

    @property
    def every(self) -> int: ...

    def __call__(self, info: StepInfo) -> dict[str, float] | None:
        """Returns metrics to add to the metrics of the step; later hooks receive them too."""
        ...


class OpenHook(Hook, Protocol):
    """A hook that is closed at the end of the run."""

    def close(self) -> None:
        """Ends its work in the background."""
        ...


@runtime_checkable
class OpensHook(Protocol):
    """Options of a hook that needs the folder of the run or its policy."""

    def open(self, folder: Path, policy: "Policy", config: dict[str, Any]) -> OpenHook:
        """Returns the hook.

        Args:
          folder: the folder of the run.
          policy: the policy that the run trains.
          config: the resolved configuration.
        """
        ...


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


class Mirror(Protocol):
    """A run folder and its copy in a store. Every call waits for the store and raises its errors.

    It reads the record from the folder. After an error it is abandoned, and a new mirror sends what
    the store lacks. A mirror that inherits from this class needs only `send_metrics` and `close`.
    """

    def send_metrics(self) -> None:
        """Sends the new lines of the record."""
        ...

    def send_files(self, *patterns: str) -> None:
        """Sends the files of the run folder that match, if the store has files."""
        return

    def close(self, status: str) -> None:
        """Sends the remaining data and the final status."""
        ...

    def where(self) -> str:
        """Returns a sentence that says where the store shows the run; empty if it has no page."""
        return ""

    def upload(self, status: str) -> None:
        """Sends requested data that may take long, such as a checkpoint; called after `close`."""
        return

    def abandon(self) -> None:
        """Releases files and threads after an error. Never raises."""
        return
