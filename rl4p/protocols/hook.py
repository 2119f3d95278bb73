"""The protocol of hooks."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rl4p.model.policy import Policy
from rl4p.types import StepInfo


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
