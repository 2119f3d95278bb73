"""A source that mixes easy prompts into some steps, fewer as the run goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Rewards
from rl4p.configuration.bounds import TopShare
from rl4p.loop.schedule import Points, check_points, value_at
from rl4p.loop.selection import matches, rounded
from rl4p.loop.source.opening import open_source
from rl4p.loop.source.quota import repeated_in, repeated_share, take
from rl4p.protocols.collection import OpenSource, Source

SALT = 0x65617379


@dataclass(frozen=True, kw_only=True)
class EasyPool:
    """Options of a source that takes a share of a step from the easy prompts, with probability p.

    The other prompts of the step, and all prompts of other steps, are not easy. Easy prompts have
    ``drawn_by="easy_pool"``, which changes neither their text nor their tokens.

    Attributes:
      source: the source of each of the two sets of prompts.
      easy: the properties of easy prompts: their task, or fields of their metadata, with one value
        or several.
      probability: p over the steps of the run, [[step, p], ...], linear between these points.
      share: the share of easy prompts in a step that has some. If it is not a whole number of
        prompts, chance rounds it up or down.
    """

    source: Source
    easy: Mapping[str, Any]
    probability: Points
    share: TopShare = 0.5

    def __post_init__(self) -> None:
        if not self.easy:
            raise ValueError("easy is empty: say which prompts are easy, such as {task: sums}.")
        check_points("probability", self.probability, 0, 1)

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "OpenEasyPool":
        easy = [prompt for prompt in prompts if matches(prompt, self.easy)]
        others = [prompt for prompt in prompts if not matches(prompt, self.easy)]
        if not easy or not others:
            what = "No prompt is" if not easy else "All prompts are"
            raise InputError(
                f"{what} easy by source.easy={dict(self.easy)}: both kinds must exist."
            )
        return OpenEasyPool(
            self,
            open_source(self.source, easy, seed=seed, key="source.source"),
            open_source(self.source, others, seed=seed, key="source.source"),
            seed,
        )


class OpenEasyPool:
    """An `OpenSource` of two sets of prompts."""

    def __init__(self, options: EasyPool, easy: OpenSource, others: OpenSource, seed: int) -> None:
        self.options = options
        self.easy = easy
        self.others = others
        self.seed = seed
        self.takes = 0

    @property
    def repeated_share(self) -> float:
        return repeated_share(self.others)

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        coin = np.random.Generator(np.random.Philox([self.seed, SALT, step]))  # one for each step
        has_easy = coin.random() < value_at(self.options.probability, step)
        self.takes += 1
        most = rounded(self.options.share * count, self.seed, SALT, self.takes) if has_easy else 0
        easy = take(self.easy, most, step, repeated=repeated)
        left = repeated - repeated_in(easy)
        easy = [replace(x, drawn_by="easy_pool") for x in easy]
        return easy + take(self.others, count - most, step, repeated=left)

    def credit(self, step: int, episodes: Sequence[Episode], rewards: Rewards) -> None:
        self.easy.credit(step, episodes, rewards)
        self.others.credit(step, episodes, rewards)

    def find(self, id: str) -> Prompt:
        try:
            return self.easy.find(id)
        except KeyError:
            return self.others.find(id)

    def state(self) -> dict[str, Any]:
        return {"easy": self.easy.state(), "others": self.others.state(), "takes": self.takes}

    def restore(self, state: dict[str, Any]) -> None:
        self.easy.restore(state["easy"])
        self.others.restore(state["others"])
        self.takes = state["takes"]
