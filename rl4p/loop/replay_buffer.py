"""A buffer of prompts with statistics of their rewards, and the source that repeats some."""

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import inf
from typing import Any

import numpy as np

from rl4p.base.types import Episode, Prompt, Question, Rewards
from rl4p.loop.prompts import as_json, rewards_by_prompt, rounded, take
from rl4p.protocols.collection import REPLAYED, OpenSource

REPLAY_SALT = 0x7265706C6179  # makes the draws independent of other sources
SPACES = re.compile(r"\s+")


@dataclass(kw_only=True)
class Entry:
    """A prompt in the buffer, with the mean and variance of its rewards by Welford's method."""

    id: str  # the id of the prompt
    count: int = 0  # n, the number of rewards
    mean: float = 0.0  # their mean
    squares: float = 0.0  # the sum of their squared differences from the mean

    def add(self, reward: float) -> None:
        """Adds a reward; one that is not finite counts as 0."""
        reward = reward if math.isfinite(reward) else 0.0
        self.count += 1
        difference = reward - self.mean
        self.mean += difference / self.count
        self.squares += difference * (reward - self.mean)

    @property
    def deviation(self) -> float:
        """The standard deviation of the rewards; 0 of fewer than two."""
        return math.sqrt(self.squares / self.count) if self.count > 1 else 0.0


@dataclass(eq=False)
class ReplayBuffer:
    """At most `capacity` prompts with different contents.

    The value v_i of a prompt is the mean of its rewards or their standard deviation. A new prompt
    enters a full buffer only if its value is above the lowest, whose prompt it replaces.

    Args:
      value: `mean` or `deviation`.
      exploration: C in the upper confidence bound v_i + C sqrt(2 ln N / n_i), where n_i is the
        number of rewards of prompt i and N is the sum over the buffer (Auer et al., 2002).
    """

    capacity: int
    value: str
    exploration: float
    entries: dict[str, Entry] = field(default_factory=dict)  # by content, in the order of arrival

    def value_of(self, entry: Entry) -> float:
        return getattr(entry, self.value)

    def update(self, prompt: Question, rewards: Sequence[float]) -> None:
        """Adds rewards to the prompt with this content, or adds the prompt if it may enter."""
        if not len(rewards):
            return
        key = content_key(prompt)
        entry = self.entries.get(key) or Entry(id=prompt.id)
        for reward in rewards:
            entry.add(float(reward))
        if key in self.entries:
            return
        if len(self.entries) >= self.capacity:
            worst = min(self.entries, key=lambda key: self.value_of(self.entries[key]))
            if self.value_of(entry) <= self.value_of(self.entries[worst]):
                return
            del self.entries[worst]
        self.entries[key] = entry

    def draw(
        self, count: int, exploit: float, random: np.random.Generator, without: Collection[str] = ()
    ) -> list[str]:
        """Returns the ids of up to `count` different prompts, as many as there are.

        Args:
          exploit: the probability of taking the largest upper confidence bound; otherwise a prompt
            is drawn uniformly.
          without: the content keys of prompts that are not drawn.
        """
        total = sum(entry.count for entry in self.entries.values())
        left = {
            key: self.value_of(entry)
            + self.exploration * math.sqrt(2 * math.log(total) / entry.count)
            for key, entry in self.entries.items()
            if key not in without
        }
        drawn = []
        for _ in range(min(count, len(left))):
            if random.random() < exploit:
                key = max(left, key=left.__getitem__)
            else:
                key = list(left)[random.integers(len(left))]
            del left[key]
            drawn.append(self.entries[key].id)
        return drawn

    def state(self) -> dict[str, Any]:
        entries = list(self.entries.values())
        if not entries:  # a checkpoint cannot hold empty arrays
            return {}
        return {
            "keys": list(self.entries),
            "ids": [entry.id for entry in entries],
            "counts": np.array([entry.count for entry in entries], np.int64),
            "means": np.array([entry.mean for entry in entries], np.float64),
            "squares": np.array([entry.squares for entry in entries], np.float64),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.entries = {}
        if not state:
            return
        columns = (state["ids"], state["counts"], state["means"], state["squares"])
        self.entries = {
            key: Entry(id=id, count=int(count), mean=float(mean), squares=float(squares))
            for key, id, count, mean, squares in zip(state["keys"], *columns, strict=True)
        }


def content_key(prompt: Question) -> str:
    """Returns a key that is equal for prompts with equal messages, tools and metadata.

    Contents are compared in Unicode form NFKC, in lower case, with single spaces.
    """
    content: list[Any] = []
    for message in prompt.prompt_messages():
        text = message.pop("content", None)
        if isinstance(text, str):
            text = SPACES.sub(" ", unicodedata.normalize("NFKC", text)).strip().lower()
        content.append([message.pop("role"), text, *filter(None, [message])])
    content += filter(None, [prompt.tools, dict(prompt.metadata)])
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=as_json).encode()).hexdigest()


@dataclass(kw_only=True, eq=False)
class OpenReplay:
    """An `OpenSource` with a buffer of prompts."""

    source: OpenSource
    buffer: ReplayBuffer
    ids: Collection[str]
    seed: int
    repeated_share: float
    least: int
    exploit: float
    takes: int = 0
    # The groups without rewards so far, by the content of a prompt.
    pending: Counter[str] = field(default_factory=Counter)

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        random = np.random.Generator(np.random.Philox([self.seed, REPLAY_SALT, self.takes]))
        self.takes += 1
        most = 0
        if len(self.buffer.entries) >= self.least:
            most = rounded(
                min(self.repeated_share * count, repeated), self.seed, REPLAY_SALT, self.takes
            )
        new, missing = list[Prompt](), count - most
        while True:
            prompts = take(self.source, missing, step, repeated=0)
            self.pending.update(map(content_key, prompts))
            new += prompts
            # Each new prompt may be one of the buffer's, which then has one fewer to replay.
            left = sum(key not in self.pending for key in self.buffer.entries)
            if (missing := count - len(new) - left) <= 0:
                break
        drawn = self.buffer.draw(count - len(new), self.exploit, random, without=self.pending)
        replayed = [replace(self.source.find(id), drawn_by=REPLAYED) for id in drawn]
        self.pending.update(map(content_key, replayed))
        return new[: count - most] + replayed + new[count - most :]

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
