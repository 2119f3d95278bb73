"""Sets of prompts: their properties and rewards, and the shares that a step takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil, inf
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Rewards
from rl4p.protocols.collection import REPLAYED, OpenSource, Repeats


def property_of(prompt: Prompt, name: str) -> Any:
    """Returns the task or the id of a prompt, or another property from its metadata."""
    if name in ("task", "id"):
        return getattr(prompt, name)
    if name not in prompt.metadata:
        known = ", ".join(["task", "id", *sorted(prompt.metadata)])
        raise InputError(f"The prompt {prompt.id} has no {name}: choose one of {known}.")
    return prompt.metadata[name]


def rounded(number: float, *seeds: int) -> int:
    """Returns the number rounded up or down by chance, such that its mean is the number."""
    chance = np.random.Generator(np.random.Philox([*seeds, 1])).random()
    return int(number + chance)


def split_by(prompts: Sequence[Prompt], name: str) -> dict[str, list[Prompt]]:
    """Returns the prompts by their property, whose values are written as texts."""
    prompts_by_value: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        prompts_by_value.setdefault(str(property_of(prompt, name)), []).append(prompt)
    return prompts_by_value


def matches(prompt: Prompt, where: Mapping[str, Any]) -> bool:
    """Returns whether each property in `where` has that value, or one of those in a list."""
    return all(
        property_of(prompt, name) in (wanted if isinstance(wanted, (list, tuple)) else (wanted,))
        for name, wanted in where.items()
    )


Points = Sequence[Sequence[float]]


def check_points(name: str, points: Points, least: float, most: float) -> None:
    """Checks that a schedule has pairs of a rising step and a value from `least` to `most`."""
    if not points or any(len(point) != 2 for point in points):
        raise ValueError(f"{name} must be pairs of a step and a value, such as [[0,1.0],[50,0.0]].")
    steps = [step for step, _ in points]
    if steps[0] < 0 or any(later <= step for step, later in pairwise(steps)):
        raise ValueError(f"the steps of {name} must rise, from 0 or more, but are {steps}.")
    for _, value in points:
        if not least <= value <= most:
            raise ValueError(f"{name} has the value {value:g}, which is not in [{least}, {most}].")


def value_at(points: Points, step: int) -> float:
    """Returns the value at a step: linear between the points, and constant outside them.

    Args:
      points: pairs of a step and a value, with rising steps.
    """
    (first, value), *_ = points
    if step <= first:
        return float(value)
    for (before, low), (after, high) in pairwise(points):
        if step < after:
            return low + (high - low) * (step - before) / (after - before)
    return float(points[-1][1])


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
    """Returns one prompt for each choice (int [n]), from the source of the choice.

    At most `repeated` prompts of all sources together are repeated.
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
            repeats = prompt.drawn_by == REPLAYED
            if len(chosen) == count or repeats > self.most:
                others.append(prompt)
                continue
            chosen.append(prompt)
            self.most -= repeats
            self.mean -= repeats
        return chosen, others

    def take(self, count: int, step: int) -> list[Prompt]:
        """Returns `count` prompts of the source."""
        repeated = max(0.0, min(self.mean, float(self.most)))
        prompts = take(self.source, count, step, repeated=repeated)
        self.most -= sum(prompt.drawn_by == REPLAYED for prompt in prompts)
        self.mean -= min(repeated_share(self.source) * count, max(0.0, self.mean))
        return prompts


def rewards_by_prompt(
    episodes: Sequence[Episode], rewards: Rewards, term: str | None = None
) -> Iterator[tuple[Prompt, np.ndarray]]:
    """Yields each prompt with the rewards of its valid samples, in the order of the prompts.

    Args:
      rewards: on the host; row b belongs to episode b.
      term: the term to yield, where it applies; None for the total reward.
    """
    value_B = rewards.total_B if term is None else rewards.terms[term]
    counted_B = rewards.valid_B if term is None else rewards.graded(term)
    rows: dict[str, list[int]] = {}
    prompts: dict[str, Prompt] = {}
    for row, episode in enumerate(episodes):
        rows.setdefault(episode.prompt.id, []).append(row)
        prompts[episode.prompt.id] = episode.prompt
    for id, rows_of_prompt in rows.items():
        own = np.array(rows_of_prompt)
        yield prompts[id], np.asarray(value_B)[own[np.asarray(counted_B)[own]]]


def as_json(value: Any) -> Any:
    """Returns a value that JSON does not know; the text of a large array would leave values out."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.shape, value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))  # their order differs from process to process
    return str(value)
