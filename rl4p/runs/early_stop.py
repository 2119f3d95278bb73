"""The rules of `stop`, which end a run before its last step."""

import re
import time
from dataclasses import dataclass, field

import jax
from omegaconf import DictConfig

import rl4p
from rl4p.base.errors import InputError
from rl4p.base.types import TrainState
from rl4p.distributed.processes import anywhere
from rl4p.runs.best import Best
from rl4p.runs.checkpoint import Checkpoints
from rl4p.runs.run_mirror import RunMirror

DURATION = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
END_SECONDS = 10.0  # for what follows the last checkpoint: plots, the summary, the trackers
BYTES_PER_SECOND = 100e6  # of a save, until one has been measured


@dataclass(kw_only=True)
class EarlyStop:
    """The rules that end a run before its last step.

    Attributes:
      best: the evaluations that `patience` and `target` read.
      patience: the run ends after so many evaluations without a new best one; None for no such end.
      target: the run ends once an evaluation is at least as good as this; None for no such end.
      seconds: the age of the process at which the run must have ended and saved; None for any.
      steps: the seconds of the steps of this start, their hooks included.
      mirror: the mirror that gets the last checkpoint too.
    """

    best: Best | None
    patience: int | None = None
    target: float | None = None
    seconds: float | None = None
    steps: list[float] = field(default_factory=list)
    mirror: RunMirror | None = None

    def reason(self, checkpoints: Checkpoints, state: TrainState) -> str | None:
        """Returns the option that ends the run now, or None; all processes must call this.

        `before` ends no run whose start has not made a step yet, so that one that is resumed again
        and again makes progress.
        """
        best = self.best
        if best is not None and (step := best.step()) is not None:
            value = best.values[step]
            reached = self.target is not None and (
                value >= self.target if best.mode == "max" else value <= self.target
            )
            if reached:
                return "target"
            if self.patience is not None and best.since() >= self.patience:
                return "patience"
        if self.seconds is not None and self.steps:
            late = time.monotonic() - rl4p.STARTED + self.needed(checkpoints, state) > self.seconds
            if anywhere(late):
                return "before"
        return None

    def needed(self, checkpoints: Checkpoints, state: TrainState) -> float:
        """Returns the seconds to reserve for another step, for its checkpoint, and for the end.

        The first step of a start compiles, and counts only until there is another.
        """
        size = sum(x.nbytes for x in jax.tree.leaves(vars(state)) if hasattr(x, "nbytes"))
        save = checkpoints.save_seconds() or size / BYTES_PER_SECOND
        if self.mirror is not None:
            save += self.mirror.slowest or size / BYTES_PER_SECOND
        return 1.5 * max(self.steps[1:] or self.steps) + 2 * save + END_SECONDS


def early_stop(config: DictConfig, best: Best | None) -> EarlyStop:
    """Returns the rules that `stop` configures.

    Raises:
      InputError: an option is wrong, or cannot act without `checkpoint.best`.
    """
    stop = config.stop
    for name in ("patience", "target"):
        if stop[name] is not None and best is None:
            raise InputError(
                f"stop.{name}={stop[name]} has no metric to compare: set checkpoint.best, for "
                "example checkpoint.best=eval/TASK/pass_at_1."
            )
    return EarlyStop(
        best=best,
        patience=stop.patience,
        target=stop.target,
        seconds=None if stop.before is None else seconds_of(stop.before),
    )


def seconds_of(before: str) -> float:
    """Returns the seconds of a duration, as HH:MM:SS or DAYS-HH:MM:SS.

    Raises:
      InputError: it is not a duration, or one of 0 seconds.
    """
    match = DURATION.fullmatch(before)
    if match is None:
        raise InputError(
            f"stop.before={before} is not a duration: write HH:MM:SS or DAYS-HH:MM:SS, as for the "
            "time limit of a queue."
        )
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total <= END_SECONDS:
        raise InputError(
            f"stop.before={before} is too short: a run needs {END_SECONDS:.0f} seconds to end."
        )
    return float(total)
