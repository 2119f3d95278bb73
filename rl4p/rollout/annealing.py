"""A temperature that changes linearly over the steps of a run."""

from dataclasses import dataclass

from rl4p.configuration.bounds import AboveZero, Natural, Positive


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A temperature that goes from the rollout's to `end` in `steps` steps, and stays there.

        t(k) = start + (end - start) min(k / steps, 1)

    with k the number of finished steps. With a period, k is their number modulo `period`: the
    temperature returns to its start.

    Attributes:
      end: the last temperature.
      steps: the steps until then.
      period: the steps between returns to the start; 0 for none.
    """

    end: AboveZero
    steps: Positive
    period: Natural = 0

    def __post_init__(self) -> None:
        if 0 < self.period <= self.steps:
            raise ValueError(
                f"period={self.period} returns to the start before the end is reached in "
                f"{self.steps} steps: choose a longer period."
            )

    def __call__(self, start: float, step: int) -> float:
        """Returns the temperature of a step, counted from 0."""
        done = step % self.period if self.period else step
        return start + (self.end - start) * min(done / self.steps, 1.0)
