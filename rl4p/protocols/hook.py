"""The protocol of hooks."""

from typing import Protocol

from rl4p.types import StepInfo


class Hook(Protocol):
    """A side effect after every `every`-th step of the loop and after the last step."""

    @property
    def every(self) -> int: ...

    def __call__(self, info: StepInfo) -> dict[str, float] | None:
        """Returns metrics to add to the metrics of the step; later hooks receive them too."""
        ...
