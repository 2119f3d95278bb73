"""What a rollout says of its programs and its caches, for a plan and for an estimate."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class PlannedProgram:
    """A traced function of a rollout, which its method `plan` describes.

    Attributes:
      phase: the name of the function in the plan.
      traced: the function, traced by JAX from shapes with shardings.
      live: the shapes of all arrays on the devices while it runs, its arguments included.
      iterations: the number of iterations of a loop whose trip count is not static.
      read: the least bytes that each device reads; None if it reads every argument once.
    """

    phase: str
    traced: Any
    live: Any
    iterations: int = 1
    read: float | None = None


@runtime_checkable
class Planned(Protocol):
    """A rollout that `rl4p.plan` can plan. The plan leaves out other rollouts, and says so."""

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields the programs of a call, in their order, on the sampling mesh.

        Each ``yield`` returns the results of that program as shapes with shardings, or None if the
        compiler found that the program cannot fit.

        Args:
          run: an `experiment.planning.abstract.AbstractRun`: the policy, and all shapes at
            their maximum.
        """
        ...

    def slots_of(self, sequences: int) -> int | None:
        """Returns how many of a step's sequences are decoded at a time, by the option `slots`.

        Returns None if there is no such option; the plan then neither searches nor suggests it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """The size of a cache of keys and values.

    Attributes:
      rows: the number of its rows, which the devices divide.
      columns: the number of its columns, one for each token.
    """

    rows: int
    columns: int


@runtime_checkable
class KeepsCaches(Protocol):
    """A rollout that keeps the keys and values of its sequences on the devices of the run."""

    def caches(self, run: Any) -> Sequence[CacheSize]:
        """Returns the caches that are on the devices at the same time at most; none on servers.

        Args:
          run: as in `Planned.plan`.
        """
        ...
