"""A source that prefers prompts of a suitable difficulty, by their running pass rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Rewards
from rl4p.configuration.bounds import AboveZero, Share
from rl4p.loop.digest import check_digest, digest_of
from rl4p.loop.rewards_by_prompt import rewards_by_prompt
from rl4p.loop.selection import property_of, split_by
from rl4p.loop.source.opening import open_source
from rl4p.loop.source.quota import repeated_share, take_each
from rl4p.protocols.collection import OpenSource, Source

SALT = 0x6C6576656C


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Options of a source that draws the level of each prompt by the running pass rates of levels.

    The pass rate r of a level is an exponential average over its samples:

        r <- decay r + (1 - decay) (mean of the samples of a group that are right)

    A level is drawn with a probability proportional to

        floor + exp(-(r - target)^2 / (2 width^2))

    A level without samples has r = target, so that it is tried soon.

    Attributes:
      source: the source of the prompts of each level.
      by: the property that is the level: `task`, a field of the prompts' metadata such as
        `level`, or `id`, with which each prompt is its own level.
      target: the pass rate to prefer. A group of samples differs most at 0.5.
      width: how far other pass rates may be from it.
      floor: keeps all levels in the run; above 0, so that a level which was too hard comes again.
      decay: the weight of the past for each group.
      term: the reward term that is at least 1 where a sample is right; None for the total reward.
    """

    source: Source
    by: str = "task"
    target: Share = 0.5
    width: AboveZero = 0.2
    floor: AboveZero = 0.05
    decay: Share = 0.9
    term: str | None = "correct"

    def __post_init__(self) -> None:
        if self.decay == 1:
            raise ValueError("decay=1 would never learn a pass rate: choose a smaller one.")

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "OpenCurriculum":
        levels = split_by(prompts, self.by)
        if len(levels) == 1:
            raise InputError(
                f"All prompts have the same {self.by}, so source=curriculum has nothing to choose "
                "from: name another property by source.by."
            )
        return OpenCurriculum(self, prompts, levels, seed)


class OpenCurriculum:
    """An `OpenSource` with a source for each level, which is opened when its turn comes."""

    def __init__(
        self,
        options: Curriculum,
        prompts: Sequence[Prompt],
        levels: dict[str, list[Prompt]],
        seed: int,
    ) -> None:
        self.options = options
        self.levels = levels
        self.names = sorted(levels)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.rates = np.full(len(levels), np.nan)
        self.sources: dict[str, OpenSource] = {}
        self.by_id = {prompt.id: prompt for prompt in prompts}
        self.digest = digest_of(prompts)
        self.seed = seed
        self.takes = 0

    @property
    def repeated_share(self) -> float:
        return repeated_share(self.source(self.names[0]))

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        options = self.options
        random = np.random.Generator(np.random.Philox([self.seed, SALT, self.takes]))
        self.takes += 1
        distance = np.nan_to_num(self.rates - options.target, nan=0.0)
        weights = options.floor + np.exp(-np.square(distance) / (2 * options.width**2))
        chosen = random.choice(len(weights), size=count, p=weights / weights.sum())
        return take_each(lambda level: self.source(self.names[level]), chosen, step, repeated)

    def source(self, name: str) -> OpenSource:
        """Returns the source of a level."""
        if name not in self.sources:
            self.sources[name] = open_source(
                self.options.source, self.levels[name], seed=self.seed, key="source.source"
            )
        return self.sources[name]

    def credit(self, step: int, episodes: Sequence[Episode], rewards: Rewards) -> None:
        term, decay = self.options.term, self.options.decay
        if term is not None and term not in rewards.terms:
            raise InputError(
                f"source.term={term} is not a term of the reward, which has "
                f"{', '.join(sorted(rewards.terms))}: name one of them, or null."
            )
        for prompt, rewards_G in rewards_by_prompt(episodes, rewards, term):
            if not len(rewards_G) or prompt.id not in self.by_id:
                continue
            level = self.number[str(property_of(prompt, self.options.by))]
            rate = float((rewards_G >= 1).mean())
            before = self.rates[level]
            self.rates[level] = rate if np.isnan(before) else decay * before + (1 - decay) * rate
        for source in self.sources.values():
            source.credit(step, episodes, rewards)

    def find(self, id: str) -> Prompt:
        return self.by_id[id]

    def state(self) -> dict[str, Any]:
        return {
            "prompts": self.digest,
            "takes": self.takes,
            "rates": self.rates.copy(),
            "sources": {name: source.state() for name, source in self.sources.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the pass rates and the position in each level.

        Raises:
          InputError: the prompts differ from the prompts of the saved run.
        """
        check_digest(state["prompts"], self.digest)
        self.takes = state["takes"]
        self.rates = np.array(state["rates"])
        self.sources = {}
        for name, own in state["sources"].items():
            self.source(name).restore(own)
