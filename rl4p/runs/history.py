"""The metrics of a run so far, with the quantities from which `diagnosis.py` judges it."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rl4p.base.errors import InputError
from rl4p.configuration.targets import locate
from rl4p.configuration.trust import TRUSTED

WINDOW = 10  # steps: a shorter one takes noise for a symptom, a longer one reports late
SOLVED = 0.9  # of the held-out prompts answered correctly


@dataclass(frozen=True)
class History:
    """The rows of a run's metrics.jsonl, up to any step, and its resolved configuration."""

    rows: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]

    @cached_property
    def steps(self) -> list[Mapping[str, Any]]:
        """The rows of steps that trained, without the evaluation before the first step."""
        return [row for row in self.rows if "reward/mean" in row]

    @property
    def lasts(self) -> bool:
        """Whether there are as many steps as a window has."""
        return len(self.steps) >= WINDOW

    def values(self, metric: str) -> list[float]:
        return [float(row[metric]) for row in self.steps if metric in row]

    def recent(self, metric: str) -> list[float]:
        return self.values(metric)[-WINDOW:]

    def late(self, metric: str) -> float:
        """Returns the median of the last steps, so that one odd step does not count; or nan."""
        values = self.recent(metric)
        return statistics.median(values) if values else math.nan

    def early(self, metric: str) -> float:
        """Returns the median of the first steps; nan if the run has no such metric."""
        values = self.values(metric)[:WINDOW]
        return statistics.median(values) if values else math.nan

    @cached_property
    def evaluations(self) -> list[float]:
        """The pass@1 of each evaluation, of the worst task."""
        scores = [
            [float(x) for name, x in row.items() if name.endswith("/pass_at_1")]
            for row in self.rows
        ]
        return [min(values) for values in scores if values]

    @property
    def solved(self) -> bool:
        """Whether the last evaluation answers nearly all held-out prompts correctly."""
        return bool(self.evaluations) and self.evaluations[-1] >= SOLVED

    @cached_property
    def change(self) -> float:
        """The change of the mean reward from the first to the last steps, in standard errors.

        The samples of a prompt are not independent, so the number of prompts counts.
        """
        rewards = self.values("reward/mean")
        difference = mean(rewards[-WINDOW:]) - mean(rewards[:WINDOW])
        variance = self.early("reward/std") ** 2 + self.late("reward/std") ** 2
        error = math.sqrt(variance / (WINDOW * self.config["prompts_per_step"]))
        if error:
            return difference / error
        return math.copysign(math.inf, difference) if difference else 0.0

    def option(self, key: str, default: Any = None) -> Any:
        """Returns a value of the configuration by its dotted key."""
        value: Any = self.config
        for name in key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return default
            value = value[name]
        return value

    def chooses_none(self, group: str) -> bool:
        """Returns whether a group that may be off is off."""
        return str(self.option(f"{group}._target_")).endswith(".NONE")

    def declares(self, phase: str, name: str, default: bool) -> bool:
        """Returns a property that the class of a phase declares (`experiment/compatibility.py`)."""
        target = str(self.option(f"{phase}._target_"))
        module, _, leaf = target.rpartition(".")
        part = getattr(sys.modules.get(module), leaf, None)  # of the user's own, in this run
        if part is None:
            try:
                part = locate(target, TRUSTED, phase)
            except InputError:  # nothing of a folder's own is imported
                return default
        return getattr(part, name, default)

    @cached_property
    def learns_from_reward(self) -> bool:
        """Whether the policy samples and its loss depends on the rewards."""
        return (
            self.declares("rollout", "samples", True)
            and self.declares("update", "reads_advantages", True)
            and not self.declares("advantage", "uniform", False)
            and self.option("teacher") is None
        )


def mean(values: Sequence[float]) -> float:
    """Returns the mean; nan without values."""
    return statistics.fmean(values) if values else math.nan
