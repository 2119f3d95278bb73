"""Sources: the order of the prompts in epochs, by task, by difficulty, and with repetitions.

A digest of the prompts tells whether a resumed run has those that it started with.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, Literal

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Prompt, Question, Rewards
from rl4p.configuration.bounds import AboveZero, NonNegative, Positive, Share, TopShare
from rl4p.loop.prompts import (
    Points,
    as_json,
    check_points,
    matches,
    property_of,
    repeated_in,
    repeated_share,
    rewards_by_prompt,
    rounded,
    split_by,
    take,
    take_each,
    value_at,
)
from rl4p.loop.replay_buffer import OpenReplay, ReplayBuffer, content_key
from rl4p.protocols.collection import OpenSource, Source
from rl4p.protocols.traits import require


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Options of a source that shuffles the prompts again for every epoch, by the run's seed."""

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> "PromptStream":
        return PromptStream(prompts, seed)


class PromptStream:
    """An endless `OpenSource` of prompts.

    The order is a pure function of (seed, epoch). Epoch and offset are therefore the whole position
    of a stream, and a restored stream continues as if it had never stopped. `take` continues into
    the next epoch when one ends, so that it always returns `count` prompts.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self.prompts, self.seed = prompts, seed
        self.by_id = {prompt.id: prompt for prompt in prompts}
        self.epoch = self.offset = 0
        self.order = self.order_of(0)

    def order_of(self, epoch: int) -> np.ndarray:
        random = np.random.Generator(np.random.Philox([self.seed, epoch]))
        return random.permutation(len(self.prompts))

    def take(self, count: int, step: int) -> list[Prompt]:
        """Returns the next `count` prompts; `step` has no effect."""
        taken: list[Prompt] = []
        while len(taken) < count:
            if self.offset == len(self.prompts):
                self.epoch, self.offset = self.epoch + 1, 0
                self.order = self.order_of(self.epoch)
            rows = self.order[self.offset : self.offset + count - len(taken)]
            self.offset += len(rows)
            taken += [self.prompts[row] for row in rows]
        return taken

    def credit(self, step: int, episodes: Sequence[Episode], rewards: Rewards) -> None:
        """Does nothing, because the order does not depend on rewards."""

    @cached_property
    def digest(self) -> str:
        return digest_of(self.prompts)

    def find(self, id: str) -> Prompt:
        return self.by_id[id]

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "offset": self.offset, "prompts": self.digest}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the position in the stream."""
        check_digest(state["prompts"], self.digest)
        self.epoch, self.offset = state["epoch"], state["offset"]
        self.order = self.order_of(self.epoch)


def open_source(
    source: Source, prompts: Sequence[Prompt], *, seed: int, key: str = "source"
) -> OpenSource:
    """Returns the live source of the options at a key of the configuration."""
    require(source, Source, key)
    live = source.open(prompts, seed=seed)
    require(live, OpenSource, key)
    return live


def digest_of(prompts: Sequence[Question]) -> str:
    """Returns a digest of all fields of the prompts in their order, whatever that of metadata."""
    digest = hashlib.sha256()
    for prompt in prompts:
        row = json.dumps(vars(prompt), sort_keys=True, default=as_json)
        digest.update(row.encode() + b"\n")
    return digest.hexdigest()


def check_digest(saved: str, own: str, what: str = "prompts") -> None:
    """Refuses to continue a run with changed prompts."""
    if saved != own:
        raise InputError(
            f"The {what} are not those that the run started with: questions, answers or "
            "metadata changed (check the file of data.path)."
        )


TASK_SALT = 0x6D6978


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

    def __init__(self, options: Any, sources: dict[str, OpenSource], seed: int) -> None:
        self.options, self.sources, self.seed = options, sources, seed
        self.takes = 0

    @property
    def repeated_share(self) -> float:
        return repeated_share(next(iter(self.sources.values())))

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        random = np.random.Generator(np.random.Philox([self.seed, TASK_SALT, self.takes]))
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
            with suppress(KeyError):
                return source.find(id)
        raise KeyError(id)

    def state(self) -> dict[str, Any]:
        states = {name: source.state() for name, source in self.sources.items()}
        return {"sources": states, "takes": self.takes}

    def restore(self, state: dict[str, Any]) -> None:
        for name, source in self.sources.items():
            source.restore(state["sources"][name])
        self.takes = state["takes"]


EASY_SALT = 0x65617379


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
        sources = {
            name: open_source(self.source, own, seed=seed, key="source.source")
            for name, own in (("easy", easy), ("others", others))
        }
        return OpenEasyPool(self, sources, seed)


class OpenEasyPool(OpenMixture):
    """An `OpenSource` of two sets of prompts, `easy` and `others`."""

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        coin = np.random.Generator(np.random.Philox([self.seed, EASY_SALT, step]))  # of the step
        has_easy = coin.random() < value_at(self.options.probability, step)
        self.takes += 1
        most = 0
        if has_easy:
            most = rounded(self.options.share * count, self.seed, EASY_SALT, self.takes)
        easy = take(self.sources["easy"], most, step, repeated=repeated)
        left = repeated - repeated_in(easy)
        easy = [replace(x, drawn_by="easy_pool") for x in easy]
        return easy + take(self.sources["others"], count - most, step, repeated=left)

    def state(self) -> dict[str, Any]:
        state = super().state()
        return state.pop("sources") | state

    def restore(self, state: dict[str, Any]) -> None:
        super().restore({"sources": state, "takes": state["takes"]})


LEVEL_SALT = 0x6C6576656C


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


class OpenCurriculum(OpenMixture):
    """An `OpenSource` with a source for each level, which is opened when its turn comes."""

    def __init__(
        self,
        options: Curriculum,
        prompts: Sequence[Prompt],
        levels: dict[str, list[Prompt]],
        seed: int,
    ) -> None:
        super().__init__(options, {}, seed)
        self.levels = levels
        self.names = sorted(levels)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.rates = np.full(len(levels), np.nan)
        self.by_id = {prompt.id: prompt for prompt in prompts}
        self.digest = digest_of(prompts)

    @property
    def repeated_share(self) -> float:
        return repeated_share(self.source(self.names[0]))

    def take(self, count: int, step: int, *, repeated: float = inf) -> list[Prompt]:
        options = self.options
        random = np.random.Generator(np.random.Philox([self.seed, LEVEL_SALT, self.takes]))
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
        super().credit(step, episodes, rewards)

    def find(self, id: str) -> Prompt:
        return self.by_id[id]

    def state(self) -> dict[str, Any]:
        return super().state() | {"prompts": self.digest, "rates": self.rates.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the pass rates and the position in each level."""
        check_digest(state["prompts"], self.digest)
        self.takes = state["takes"]
        self.rates = np.array(state["rates"])
        self.sources = {}
        for name, own in state["sources"].items():
            self.source(name).restore(own)


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

    def open(self, prompts: Sequence[Prompt], *, seed: int) -> OpenReplay:
        different = len({content_key(prompt) for prompt in prompts})
        if different < self.least:
            raise InputError(
                f"There are {different} different prompts, but a replay begins with "
                f"least={self.least}: set source.least to fewer."
            )
        return OpenReplay(
            source=open_source(self.source, prompts, seed=seed, key="source.source"),
            buffer=ReplayBuffer(self.capacity, self.value, self.exploration),
            ids={prompt.id for prompt in prompts},
            seed=seed,
            repeated_share=self.share,
            least=self.least,
            exploit=self.exploit,
        )
