"""A source that repeats some of the earlier prompts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Any, Literal

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Rewards
from rl4p.configuration.bounds import NonNegative, Positive, Share
from rl4p.loop.replay_buffer import ReplayBuffer, content_key
from rl4p.loop.rewards_by_prompt import rewards_by_prompt
from rl4p.loop.selection import rounded
from rl4p.loop.source.opening import open_source
from rl4p.loop.source.quota import take
from rl4p.protocols.collection import REPLAYED, OpenSource, Source

SALT = 0x7265706C6179  # makes the draws independent of other sources


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Options of a source that replaces a share of the prompts by prompts of a `ReplayBuffer`.

    The buffer holds the prompts of earlier steps with the rewards of their samples. Invalid samples
    are left out. A prompt is not replayed while samples of it have no rewards yet, so the replayed
    prompts of a step differ from one another and from its new prompts. They have
    ``drawn_by="replay"``, and their rewards are added to those that they have.

    Attributes:
      source: the source of the other prompts.
      capacity: the most prompts in the buffer.
      share: the share of the prompts that is replayed, as far as the buffer has others. If it is
        not a whole number of prompts, chance rounds it up or down. Filters and caches of collectors
        never raise it.
      least: the number of prompts in the buffer from which on prompts are replayed.
      value: what makes a prompt worth replaying: `deviation`, the standard deviation of its
        rewards, without which most advantages are 0; or `mean`.
      exploit: the probability that a replayed prompt is the one with the largest upper confidence
        bound of its value; otherwise it is drawn uniformly.
      exploration: the weight of the uncertainty in that bound.
    """

    source: Source
    capacity: Positive = 1024
    share: Share = 0.25
    least: Positive = 64
    value: Literal["deviation", "mean"] = "deviation"
    exploit: Share = 0.8
    exploration: NonNegative = 0.5

    def __post_init__(self) -> None:
        if self.least > self.capacity:
            raise ValueError(
                f"least={self.least} is more than capacity={self.capacity}, so no prompt would be "
                "replayed."
            )

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "OpenReplay":
        different = len({content_key(prompt) for prompt in prompts})
        if different < self.least:
            raise InputError(
                f"There are {different} different prompts, but a replay begins with "
                f"least={self.least}: set source.least to fewer."
            )
        return OpenReplay(
            self, open_source(self.source, prompts, seed=seed, key="source.source"), prompts, seed
        )


class OpenReplay:
    """An `OpenSource` with a buffer of prompts."""

    def __init__(
        self, options: Replay, source: OpenSource, prompts: Sequence[Prompt], seed: int
    ) -> None:
        self.options = options
        self.source = source
        self.ids = {prompt.id for prompt in prompts}
        self.seed = seed
        self.takes = 0
        self.pending = Counter[str]()  # groups without rewards so far, by the content of a prompt
        self.buffer = ReplayBuffer(options.capacity, options.value, options.exploration)

    @property
    def repeated_share(self) -> float:
        return self.options.share

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        options = self.options
        random = np.random.Generator(np.random.Philox([self.seed, SALT, self.takes]))
        self.takes += 1
        most = 0
        if len(self.buffer) >= options.least:
            most = rounded(min(options.share * count, repeated), self.seed, SALT, self.takes)
        new = self.next(count - most, step)
        # Each new prompt may be one of the buffer's, which then has one fewer to replay.
        while (missing := count - len(new) - self.buffer.count(without=self.pending)) > 0:
            new += self.next(missing, step)
        drawn = self.buffer.draw(count - len(new), options.exploit, random, without=self.pending)
        replayed = [replace(self.source.find(id), drawn_by=REPLAYED) for id in drawn]
        self.pending.update(map(content_key, replayed))
        return new[: count - most] + replayed + new[count - most :]

    def next(self, count: int, step: int) -> list[Prompt]:
        """Returns prompts of the other source."""
        prompts = take(self.source, count, step, repeated=0)
        self.pending.update(map(content_key, prompts))
        return prompts

    def credit(self, step: int, episodes: Sequence[Episode], rewards: Rewards) -> None:
        runs = [len(list(run)) for _, run in groupby(each.prompt.id for each in episodes)]
        samples = Counter(episode.prompt.id for episode in episodes)
        for prompt, rewards_G in rewards_by_prompt(episodes, rewards):
            if prompt.id in self.ids:
                # A prompt may have several groups, of the same size as any other group.
                self.pending[content_key(prompt)] -= samples[prompt.id] // min(runs)
                self.buffer.update(prompt, rewards_G.tolist())
        self.pending = +self.pending  # without what is 0
        self.source.credit(step, episodes, rewards)

    def find(self, id: str) -> Prompt:
        return self.source.find(id)

    def state(self) -> dict[str, Any]:
        return {
            "source": self.source.state(),
            "takes": self.takes,
            "pending": dict(sorted(self.pending.items())),
            "buffer": self.buffer.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.source.restore(state["source"])
        self.takes = state["takes"]
        self.pending = Counter(state["pending"])
        self.buffer.restore(state["buffer"])
