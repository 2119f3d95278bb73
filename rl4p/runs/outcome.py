"""What a run has achieved, and whether that ends it before its last step (`stop`)."""

import hashlib
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np
from omegaconf import DictConfig

import rl4p
from rl4p.base.errors import InputError
from rl4p.base.types import Params, TrainState
from rl4p.distributed.processes import anywhere, to_host
from rl4p.loop.stopwatch import Compilation, clock, compiled_within
from rl4p.protocols.hook import StepInfo, TrackedRun
from rl4p.runs.best import Best
from rl4p.runs.checkpoint import Checkpoints
from rl4p.runs.record import Record
from rl4p.runs.run_mirror import RunMirror

DURATION = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
END_SECONDS = 10.0  # for what follows the last checkpoint: plots, the summary, the trackers
BYTES_PER_SECOND = 100e6  # of a save, until one has been measured


@dataclass(kw_only=True)
class EarlyStop:
    """The rules that end a run before its last step."""

    best: Best | None  # the evaluations that `patience` and `target` read
    # The run ends after so many evaluations without a new best one; None for no such end.
    patience: int | None = None
    # The run ends once an evaluation is at least as good as this; None for no such end.
    target: float | None = None
    # The age of the process at which the run must have ended and saved; None for any.
    seconds: float | None = None
    # The seconds of the steps of this start, their hooks included.
    steps: list[float] = field(default_factory=list)
    mirror: RunMirror | None = None  # the mirror that gets the last checkpoint too

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
    """Returns the rules that `stop` configures."""
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
    """Returns the seconds of a duration, as HH:MM:SS or DAYS-HH:MM:SS."""
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


PHASES = ("rollout", "reward", "scoring", "advantage", "update", "evaluation")
WAITS = "trainer_waits"  # for samples, if rollout and reward run in the background
LOSSES = ("/loss", "/perplexity")  # the metrics of an evaluation of which the lowest is the best


@dataclass(kw_only=True)
class RunOutcome:
    """A hook that records and mirrors the metrics of a step, and has the content of summary.json.

    It is updated after every step, so that a failed run has a summary too.
    """

    record: Record
    tracked: TrackedRun
    state: TrainState
    every: int = 1
    resumed_from: int | None = None
    best: Best | None = None
    stopped_by: str = "error"
    times: list[dict[str, float]] = field(default_factory=list)
    step: int = 0
    begun: bool = False

    def begin(self, state: TrainState, *, resumed: bool) -> None:
        self.record.reserve()
        self.state, self.step, self.begun = state, int(state.step), True
        self.resumed_from = self.step if resumed else None

    def __call__(self, info: StepInfo) -> None:
        self.record.log(info.step, info.metrics)
        self.tracked.log(info.step, info.metrics)
        self.state, self.step = info.state, info.step
        self.count(info.metrics)

    def count(self, metrics: Mapping[str, float]) -> None:
        """Adds the times of the phases of a step, or of the evaluation before the first step."""
        present = (name for name in (*PHASES, WAITS) if f"time/{name}" in metrics)
        self.times.append({name: metrics[f"time/{name}"] for name in present})

    def summary(self, status: str, started: float, compiled: Compilation) -> dict[str, Any]:
        """Returns the content of summary.json."""
        ended = clock()
        whole = {"total": ended - started, "compile": compiled_within(started, ended)}
        rows = self.record.metrics()
        evaluations = [
            evaluation
            for row in rows
            if (evaluation := {k: value for k, value in row.items() if k.startswith("eval/")})
        ]
        names = {name for evaluation in evaluations for name in evaluation}
        best = {
            name: (min if name.endswith(LOSSES) else max)(e[name] for e in evaluations if name in e)
            for name in sorted(names)
        }
        phases = (*PHASES, WAITS) if any(WAITS in each for each in self.times) else PHASES
        times = {name: [each[name] for each in self.times if name in each] for name in phases}
        return {
            "status": status,
            "stopped_by": self.stopped_by,
            "step": self.step,
            "best": None if self.best is None else self.best.summary(),
            "idle_steps": idle_steps(rows),
            "evaluation": {
                "first": evaluations[0] if evaluations else {},
                "last": evaluations[-1] if evaluations else {},
                "best": best,
            },
            "params_sha256": params_sha256(self.state.params) if status != "failed" else None,
            "seconds": whole | {name: sum(times[name]) for name in phases},
            "median_seconds": {  # of the steps with that phase
                name: statistics.median(times[name]) if times[name] else 0.0 for name in phases
            },
            "compilation": asdict(compiled),
            "resumed_from": self.resumed_from,
        }


def idle_steps(rows: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Returns how many steps had an update that was skipped, and how many had a gradient of 0."""
    return {
        "skipped": sum(row.get("update/skipped", 0) > 0 for row in rows),
        "zero_gradient": sum(row.get("update/grad_norm") == 0 for row in rows),
    }


def params_sha256(params: Params) -> str:
    """Returns a digest of the names, shapes, dtypes and bytes of all parameters, sorted by name."""
    digest = hashlib.sha256()
    for path, value in jax.tree_util.tree_flatten_with_path(params)[0]:
        array = np.asarray(to_host(value))
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        digest.update(f"{name} {array.shape} {array.dtype}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def objective(summary: Mapping[str, Any]) -> float:
    """Returns the mean pass@1 over the tasks of the last evaluation of a run; nan without one."""
    last = summary["evaluation"]["last"]
    scores = [float(value) for name, value in last.items() if name.endswith("/pass_at_1")]
    return statistics.fmean(scores) if scores else float("nan")
