"""The slots of completions that are decoded together, on the host."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import numpy as np

from rl4p.model.policy import padded_width
from rl4p.serving.programs import Constants, Outcome, State
from rl4p.serving.work import Work

PROMPT_TOKENS_PER_CALL = 2048  # prefilled between two device calls; running completions wait


@dataclass(eq=False, kw_only=True)
class Running:
    """A completion that is decoded or waits for a slot.

    Attributes:
      work, index: what it continues, and the number of its seed.
      owner: the object that the scheduler delivers to.
      tokens: the context and the tokens drawn so far.
      drawn: the number of tokens drawn so far.
    """

    work: Work
    index: int
    owner: Any
    tokens: list[int] = field(init=False)
    drawn: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.work.tokens)

    @property
    def needs_extras(self) -> bool:
        """Whether `programs.decode` needs its `extras` for the next tokens."""
        return self.work.alternatives > 0 or self.drawn < self.work.min_tokens

    @property
    def length(self) -> int:
        """The number of tokens, also while the newest are not yet in `tokens`."""
        return len(self.work.tokens) + self.drawn


class Slots:
    """n slots and the arrays that `programs.decode` reads.

    The arrays are changed in place, and therefore never while a device call is under way.

    Attributes:
      rows: the completion in each slot; None in a free slot.
      state, constants: of each slot; those of a free slot are arbitrary, except `active_n`.
    """

    def __init__(self, n: int) -> None:
        self.rows: list[Running | None] = [None] * n
        zeros_n, keys_n = np.zeros(n, np.int32), np.zeros((n, key_words()), np.uint32)
        self.state = State(
            token_n=zeros_n.copy(),
            length_n=np.ones(n, np.int32),
            drawn_n=zeros_n.copy(),
            active_n=np.zeros(n, bool),
        )
        self.constants = Constants(
            limit_n=zeros_n.copy(),
            least_n=zeros_n.copy(),
            temperature_n=np.zeros(n, np.float32),
            top_k_n=zeros_n.copy(),
            top_p_n=np.ones(n, np.float32),
            ends_nE=np.full((n, 4), -1, np.int32),
            keys_n=keys_n,
        )

    def running(self) -> list[Running]:
        return [row for row in self.rows if row is not None]

    def free(self) -> list[int]:
        return [slot for slot, row in enumerate(self.rows) if row is None]

    def put(self, slot: int, running: Running) -> None:
        """Puts a completion in a free slot."""
        work, sampling = running.work, running.work.sampling
        self.rows[slot] = running
        state = running.tokens[-1], len(running.tokens), running.drawn, True
        self.widen(len(work.end_ids))
        ends_E = np.full(self.constants.ends_nE.shape[1], -1, np.int32)
        ends_E[: len(work.end_ids)] = work.end_ids
        constants = (
            work.max_tokens,
            work.min_tokens,
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            ends_E,
            key_data(work.seeds[running.index], key_words()),
        )
        for array, value in zip((*self.state, *self.constants), (*state, *constants), strict=True):
            array[slot] = value

    def widen(self, count: int) -> None:
        """Makes room for `count` end tokens: few numbers of columns need few compilations."""
        ends_nE = self.constants.ends_nE
        more = (1 << max(2, (count - 1).bit_length())) - ends_nE.shape[1]
        if more > 0:
            wide = np.pad(ends_nE, ((0, 0), (0, more)), constant_values=-1)
            self.constants = self.constants._replace(ends_nE=wide)

    def clear(self, slot: int) -> None:
        """Frees a slot."""
        self.rows[slot] = None
        self.state.active_n[slot] = False

    def moved(self, order: Sequence[int], n: int) -> "Slots":
        """Returns n slots, of which the first hold what is in these slots."""
        slots = Slots(n)
        slots.widen(self.constants.ends_nE.shape[1])
        slots.rows[: len(order)] = [self.rows[slot] for slot in order]
        for new, old in zip(
            (*slots.state, *slots.constants), (*self.state, *self.constants), strict=True
        ):
            new[: len(order)] = old[list(order)]
        return slots

    def advance(self, outcome: Outcome) -> np.ndarray:
        """Updates the state after a device call, and returns the number of new tokens of slots."""
        state, slots_n = self.state, np.arange(len(self.rows))
        count_n = outcome.drawn_n - state.drawn_n
        newest_n = outcome.tokens_nM[slots_n, np.maximum(count_n - 1, 0)]
        state.token_n[:] = np.where(count_n > 0, newest_n, state.token_n)
        state.length_n[:] += count_n
        state.drawn_n[:] = outcome.drawn_n
        return count_n


@cache
def key_words() -> int:
    """Returns the number of words in the data of a random key."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape[0]


def key_data(seed: int, words: int) -> np.ndarray:
    """Returns the data of a random key as JAX makes it from a seed with 64-bit integers on."""
    return np.resize(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), words)


def taken(waiting: deque[Running], free: int) -> list[Running]:
    """Removes completions for free slots from a queue, and returns them.

    Their different contexts have at most `PROMPT_TOKENS_PER_CALL` tokens, or there is only one.
    """
    new: list[Running] = []
    contexts: set[tuple[int, ...]] = set()
    room = PROMPT_TOKENS_PER_CALL
    while waiting and len(new) < free:
        if (context := tuple(waiting[0].tokens)) not in contexts:
            contexts.add(context)
            room -= padded_width(len(context))
        if new and room < 0:
            break
        new.append(waiting.popleft())
    return new
