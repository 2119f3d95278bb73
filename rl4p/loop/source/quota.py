"""How many of the groups that a collector trains on may repeat earlier prompts."""

from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import Any

import numpy as np

from rl4p.base.types import Prompt
from rl4p.protocols.collection import REPLAYED, OpenSource, Repeats


def repeated_share(source: OpenSource) -> float:
    """Returns the largest share of repeated prompts in a step; 1 if the source repeats none."""
    return source.repeated_share if isinstance(source, Repeats) else 1.0


def most_repeated(source: OpenSource, groups: int) -> int:
    """Returns the largest number of repeated prompts in a step of so many groups."""
    return ceil(round(repeated_share(source) * groups, 9))


def take(source: OpenSource, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
    """Returns `count` prompts of a source, of which at most `repeated` are repeated."""
    repeats: Any = source
    if isinstance(source, Repeats):
        return repeats.take(count, step, repeated=repeated)
    return source.take(count, step)


def take_each(
    source_of: Callable[[int], OpenSource], chosen: np.ndarray, step: int, repeated: float
) -> list[Prompt]:
    """Returns one prompt for each choice, from the source of the choice.

    Args:
      source_of: returns the source of a choice.
      chosen: the choices, int [n].
      repeated: the most repeated prompts of all sources together.
    """
    taken = {}
    for choice, number in zip(*np.unique(chosen, return_counts=True), strict=True):
        prompts = take(source_of(choice), int(number), step, repeated=repeated)
        repeated -= repeated_in(prompts)
        taken[choice] = iter(prompts)
    return [next(taken[choice]) for choice in chosen]


def repeated_in(prompts: Sequence[Prompt]) -> int:
    """Returns how many prompts are repeated."""
    return sum(prompt.drawn_by == REPLAYED for prompt in prompts)


class Quota:
    """The repeated prompts that a step may still sample, over all its rounds.

    Repeated prompts that filters reject count too. The share is therefore kept whatever the filters
    and a cache accept.

    Args:
      groups: the groups that the step trains on.
    """

    def __init__(self, source: OpenSource, groups: int) -> None:
        self.source = source
        self.most = most_repeated(source, groups)
        self.mean = repeated_share(source) * groups  # what is left of it on average

    def choose(self, waiting: Sequence[Prompt], count: int) -> tuple[list[Prompt], list[Prompt]]:
        """Returns up to `count` prompts that may be sampled now, and the others, in their order."""
        chosen: list[Prompt] = []
        others: list[Prompt] = []
        for prompt in waiting:
            repeats = repeated_in([prompt])
            if len(chosen) == count or repeats > self.most:
                others.append(prompt)
                continue
            chosen.append(prompt)
            self.most -= repeats
            self.mean -= repeats
        return chosen, others

    def take(self, count: int, step: int) -> list[Prompt]:
        """Returns `count` prompts of the source."""
        prompts = take(
            self.source, count, step, repeated=max(0.0, min(self.mean, float(self.most)))
        )
        self.most -= repeated_in(prompts)
        self.mean -= min(repeated_share(self.source) * count, max(0.0, self.mean))
        return prompts
