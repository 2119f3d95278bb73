"""A source whose tasks have shares that change over the steps of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Rewards
from rl4p.loop.schedule import Points, check_points, value_at
from rl4p.loop.selection import split_by
from rl4p.loop.source.opening import open_source
from rl4p.loop.source.quota import repeated_share, take_each
from rl4p.protocols.collection import OpenSource, Source

SALT = 0x6D6978


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Options of a source that draws the task of each prompt with probability w_i / sum(w).

    Attributes:
      source: the source of the prompts of each task.
      weights: for each task, w_i over the steps of the run, [[step, w], ...], linear between these
        points. A weight of 0 leaves the task out. All tasks of the data must be listed.
      by: the property that names the task: `task`, or a field of the prompts' metadata.
    """

    source: Source
    weights: Mapping[str, Points]
    by: str = "task"

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("weights is empty: add source.weights.TASK=[[0,1.0]] for each task.")
        for name, points in self.weights.items():
            check_points(f"weights.{name}", points, 0, float("inf"))
        steps = {step for points in self.weights.values() for step, _ in points} | {0}
        for step in sorted(steps):
            if not any(value_at(points, int(step)) for points in self.weights.values()):
                raise ValueError(f"all weights are 0 at step {step:g}.")

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "OpenMixture":
        tasks = split_by(prompts, self.by)
        if tasks.keys() != self.weights.keys():
            raise InputError(
                f"source.weights has {', '.join(sorted(self.weights))}, but the {self.by} of the "
                f"prompts is one of {', '.join(sorted(tasks))}: give each a weight."
            )
        sources = {
            name: open_source(self.source, tasks[name], seed=seed, key="source.source")
            for name in sorted(tasks)
        }
        return OpenMixture(self, sources, seed)


class OpenMixture:
    """An `OpenSource` with a source for each task."""

    def __init__(self, options: Mixture, sources: dict[str, OpenSource], seed: int) -> None:
        self.options = options
        self.sources = sources
        self.seed = seed
        self.takes = 0

    @property
    def repeated_share(self) -> float:
        return repeated_share(next(iter(self.sources.values())))

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        random = np.random.Generator(np.random.Philox([self.seed, SALT, self.takes]))
        self.takes += 1
        names = list(self.sources)
        weights = np.array([value_at(self.options.weights[name], step) for name in names])
        chosen = random.choice(len(names), size=count, p=weights / weights.sum())
        return take_each(lambda task: self.sources[names[task]], chosen, step, repeated)

    def credit(self, step: int, episodes: Sequence[Episode], rewards: Rewards) -> None:
        for source in self.sources.values():
            source.credit(step, episodes, rewards)

    def find(self, id: str) -> Prompt:
        for source in self.sources.values():
            try:
                return source.find(id)
            except KeyError:
                continue
        raise KeyError(id)

    def state(self) -> dict[str, Any]:
        return {
            "sources": {name: source.state() for name, source in self.sources.items()},
            "takes": self.takes,
        }

    def restore(self, state: dict[str, Any]) -> None:
        for name, source in self.sources.items():
            source.restore(state["sources"][name])
        self.takes = state["takes"]
