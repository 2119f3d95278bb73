"""The best checkpoint of a run, by a metric of its evaluations.

Nothing else records which checkpoint is the best: the values are in `metrics.jsonl`, whose line is
written before a checkpoint is begun, and the checkpoints are the folders that are complete. The
checkpoint before is deleted only when the folder of a better one has its final name. A run that is
killed at any moment therefore has the best of its complete checkpoints.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.configuration.suggestions import metrics_like, write
from rl4p.configuration.yaml_file import load_yaml
from rl4p.runs.record import Record

if TYPE_CHECKING:
    from rl4p.base.types import TrainState
    from rl4p.loop.evaluation import Evaluation
    from rl4p.protocols.hook import StepInfo

Mode = Literal["max", "min"]


class SavesSteps(Protocol):
    """The checkpoints of a run: the steps of the complete ones, and of all that were begun."""

    def steps(self) -> Collection[int]: ...

    def begun(self) -> Collection[int]: ...

    def save(self, state: "TrainState") -> None: ...


@dataclass(kw_only=True)
class Best:
    """A hook that saves a checkpoint after each evaluation that is better than all before.

    The evaluation before the first step does not count: its policy is the model that the run began
    with, which has no checkpoint. Of equal values the first is the best.
    """

    metric: str  # such as eval/addition/pass_at_1
    mode: Mode = "max"  # whether the largest or the smallest value is the best
    every: int = 1  # steps between evaluations
    values: dict[int, float] = field(default_factory=dict)  # of each evaluation, by step
    checkpoints: SavesSteps | None = None

    def begin(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Reads the evaluations of a resumed run from its metrics."""
        self.values = {int(row["step"]): row[self.metric] for row in rows if self.counts(row)}

    def counts(self, row: Mapping[str, Any]) -> bool:
        value = row.get(self.metric)
        return row["step"] > 0 and value is not None and not math.isnan(value)

    def __call__(self, info: "StepInfo") -> None:
        if not self.counts(info.metrics | {"step": info.step}):
            return
        self.values[info.step] = info.metrics[self.metric]
        assert self.checkpoints is not None
        if self.step({*self.checkpoints.begun(), info.step}) == info.step:
            self.checkpoints.save(info.state)

    def step(self, among: Collection[int] | None = None) -> int | None:
        """Returns the best step among some, or among all evaluated ones; None if there is none."""
        steps = [step for step in sorted(self.values) if among is None or step in among]
        choose = max if self.mode == "max" else min
        return choose(steps, key=self.values.__getitem__, default=None)

    def summary(self) -> dict[str, Any]:
        """Returns the best step that has a checkpoint, and its value, for the summary of a run."""
        assert self.checkpoints is not None
        step = self.step(self.checkpoints.steps())
        value = None if step is None else self.values[step]
        return {"metric": self.metric, "mode": self.mode, "step": step, "value": value}

    def since(self) -> int:
        """Returns the number of evaluations after the best one."""
        best = self.step()
        return 0 if best is None else sum(step > best for step in self.values)


def best_of(config: DictConfig, evaluation: "Evaluation") -> Best | None:
    """Returns the hook that `checkpoint.best` configures, or None."""
    options, names = config.checkpoint, evaluation.names()
    metric, mode = options.get("best"), options.get("mode", "max")
    if metric is None:
        if mode != "max":
            raise InputError(
                f"checkpoint.mode={mode} has no effect without checkpoint.best: set it to a metric "
                f"such as {names[0]}."
            )
        return None
    if metric not in names:
        problem = f"checkpoint.best={metric} is not a metric of the evaluations"
        if near := metrics_like(metric, names):
            raise InputError(write(problem, *([f"checkpoint.best={name}"] for name in near)))
        raise InputError(f"{problem}; they are {', '.join(names)}.")
    if not evaluation.every:
        raise InputError(
            f"checkpoint.best={metric} cannot act, because evaluation.every=0 evaluates no step "
            "but the last: set evaluation.every."
        )
    return Best(metric=metric, mode=mode, every=evaluation.every)


def best_checkpoint(folder: Path, steps: Collection[int]) -> int:
    """Returns the step of the best checkpoint of a run, among its complete ones."""
    try:
        options: Any = OmegaConf.select(load_yaml(folder / ".hydra" / "config.yaml"), "checkpoint")
        metric, mode = options.get("best"), options.get("mode")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{folder} is not the folder of a run: its .hydra is broken.") from error
    if metric is None:
        raise InputError(
            f"{folder} has no best checkpoint, because its checkpoint.best was not set: choose "
            "step=N, or leave checkpoint=best out for the newest."
        )
    best = Best(metric=metric, mode=mode)
    best.begin(Record(folder).metrics())
    step = best.step(steps)
    if step is None:
        raise InputError(f"No checkpoint in {folder} is of a step with {metric}.")
    return step
