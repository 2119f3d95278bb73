"""The protocol of hooks, and what they receive."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rl4p.base.types import Array, Episode, Rewards, TrainState, Trajectories
from rl4p.model.policy import Policy


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """The record of one finished step, which hooks receive.

    Attributes:
      advantages_BT, loss_mask_BT: as in the `TrainingBatch`, if the loop passes them on.
    """

    step: int
    state: TrainState
    trajectories: Trajectories
    episodes: Sequence[Episode]
    rewards: Rewards
    metrics: dict[str, float]
    advantages_BT: Array | None = None
    loss_mask_BT: Array | None = None


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

    def open(self, folder: Path, policy: Policy, config: dict[str, Any]) -> OpenHook:
        """Returns the hook.

        Args:
          folder: the folder of the run.
          policy: the policy that the run trains.
          config: the resolved configuration.
        """
        ...
