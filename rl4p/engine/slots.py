"""The slots of sequences that are decoded together, on the host."""

from collections.abc import Sequence
from functools import cache

import jax
import numpy as np

from rl4p.base.types import Sampling
from rl4p.engine.decode import Outcome, SlotConstants, SlotState
from rl4p.engine.distributions import OwnDistributions, numbers
from rl4p.engine.sequence import TokenSequence

NO_SAMPLING = Sampling(temperature=0.0)


class Slots:
    """n slots and the arrays that `decode` reads.

    The arrays are changed in place, and therefore never while a device call is under way.

    Attributes:
      sequences: the sequence in each slot; None in a free slot.
      state, constants, distributions: of each slot. They are arbitrary for a free slot, except
        `active_n`.
    """

    def __init__(self, n: int) -> None:
        self.sequences: list[TokenSequence | None] = [None] * n
        zeros_n, keys = np.zeros(n, np.int32), key_shape()
        self.state = SlotState(
            token_n=zeros_n.copy(),
            length_n=np.ones(n, np.int32),
            drawn_n=zeros_n.copy(),
            active_n=np.zeros(n, bool),
        )
        self.constants = SlotConstants(
            padding_n=zeros_n.copy(),
            limit_n=zeros_n.copy(),
            least_n=zeros_n.copy(),
            ends_nE=np.full((n, 4), -1, np.int32),
            keys_n=np.zeros((n, *keys.shape), keys.dtype),
        )
        self.distributions = OwnDistributions.of([NO_SAMPLING] * n)

    def arrays(self) -> list[np.ndarray]:
        return [*self.state, *self.constants, *vars(self.distributions).values()]  # pyright: ignore[reportReturnType]

    def running(self) -> list[TokenSequence]:
        return [sequence for sequence in self.sequences if sequence is not None]

    def free(self) -> list[int]:
        return [slot for slot, sequence in enumerate(self.sequences) if sequence is None]

    def put(self, slot: int, sequence: TokenSequence, padding: int) -> None:
        """Puts a sequence in a free slot; there are `padding` columns before its first token."""
        self.sequences[slot] = sequence
        ends, sampling = sequence.end_ids, sequence.sampling or NO_SAMPLING
        self.widen(len(ends))
        values = (
            *(sequence.tokens[-1], sequence.length, sequence.drawn, True),
            *(padding, sequence.begun + sequence.max_tokens, sequence.begun + sequence.min_tokens),
            *([*ends, *[-1] * (self.constants.ends_nE.shape[1] - len(ends))], sequence.key),
            *numbers(sampling),
        )
        for array, value in zip(self.arrays(), values, strict=True):
            array[slot] = value

    def seen(self, V: int) -> np.ndarray | None:
        """Returns which tokens have occurred, uint8 [n, V]; None if no sequence needs it."""
        rows = [x if x is not None and x.penalizes else None for x in self.sequences]
        if not any(rows):
            return None
        nothing_V = np.zeros(V, np.uint8)
        return np.stack([nothing_V if x is None else x.seen(V) for x in rows])

    def widen(self, count: int) -> None:
        """Makes room for `count` end tokens: few numbers of columns need few compilations."""
        ends_nE = self.constants.ends_nE
        more = (1 << max(2, (count - 1).bit_length())) - ends_nE.shape[1]
        if more > 0:
            wide = np.pad(ends_nE, ((0, 0), (0, more)), constant_values=-1)
            self.constants = self.constants._replace(ends_nE=wide)

    def clear(self, slot: int) -> None:
        """Frees a slot."""
        self.sequences[slot] = None
        self.state.active_n[slot] = False

    def by_shard(self, shards: int) -> list[list[int]]:
        """Returns the slots with a sequence, of each shard."""
        each, n = len(self.sequences) // shards, len(self.sequences)
        taken = [slot for slot in range(n) if self.sequences[slot] is not None]
        return [[slot for slot in taken if slot // each == shard] for shard in range(shards)]

    def rearranged(self, old_n: Sequence[int]) -> "Slots":
        """Returns slots that hold what is in these slots; -1 is a free slot."""
        slots, filled = Slots(len(old_n)), [n for n, old in enumerate(old_n) if old >= 0]
        slots.widen(self.constants.ends_nE.shape[1])
        order = [old_n[n] for n in filled]
        for n, old in zip(filled, order, strict=True):
            slots.sequences[n] = self.sequences[old]
        for new, old in zip(slots.arrays(), self.arrays(), strict=True):
            new[filled] = old[order]
        return slots

    def advance(self, outcome: Outcome) -> np.ndarray:
        """Updates the state after a device call, and returns the number of new tokens of slots."""
        state, slots_n = self.state, np.arange(len(self.sequences))
        count_n = outcome.drawn_n - state.drawn_n
        newest_n = outcome.tokens_nM[slots_n, np.maximum(count_n - 1, 0)]
        state.token_n[:] = np.where(count_n > 0, newest_n, state.token_n)
        state.length_n[:] += count_n
        state.drawn_n[:] = outcome.drawn_n
        return count_n


@cache
def key_shape() -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of the data of a random key."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))


def key_data(seed: int) -> np.ndarray:
    """Returns the data of a random key from a seed, from 0 to 2**64 - 1.

    They are the upper and the lower 32 bits of the seed, as `jax.random.key` makes them with 64-bit
    integers on, repeated to the length of the data; with them off, it cuts the seed to 32 bits.
    """
    return np.resize(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), key_shape().shape[0])
