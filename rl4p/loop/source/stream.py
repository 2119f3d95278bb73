"""A source that repeats the prompts in epochs, each epoch in a different order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rl4p.base.types import Episode, Prompt, Rewards
from rl4p.loop.digest import check_digest, digest_of


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
        self.prompts = prompts
        self.seed = seed
        self.epoch = 0
        self.offset = 0
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

    @cached_property
    def by_id(self) -> dict[str, Prompt]:
        return {prompt.id: prompt for prompt in self.prompts}

    def find(self, id: str) -> Prompt:
        return self.by_id[id]

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "offset": self.offset, "prompts": self.digest}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the position in the stream.

        Raises:
          InputError: the prompts differ from the prompts of the saved run.
        """
        check_digest(state["prompts"], self.digest)
        self.epoch, self.offset = state["epoch"], state["offset"]
        self.order = self.order_of(self.epoch)
