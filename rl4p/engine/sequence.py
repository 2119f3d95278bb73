"""Sequences, the slots in which they are decoded, and their new tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Sampling
from rl4p.distributed.processes import to_host
from rl4p.engine.decode import (
    Outcome,
    OwnDistributions,
    SlotConstants,
    SlotState,
    in_support,
    numbers,
)
from rl4p.model.sampling import PROMPT, RESPONSE, Draws


@dataclass(eq=False, kw_only=True)
class TokenSequence:
    """A sequence that has a slot, waits for one, or has ended.

    Attributes:
      context: the token ids that it begins with, at least one.
      key: uint32 [...], the data of its random key. Token t is drawn with fold_in(key, t).
      max_tokens: the most tokens that are added, the end token included.
      end_ids: the tokens that end it; the end token is its last token.
      drawn: how many tokens its key has drawn; above 0 from the start if the context ends with
        tokens that this key drew.
      sampling: its own sampling distribution; None takes the one of all sequences.
      min_tokens: it cannot end with an end token before it has this many new tokens.
      alternatives: how many of the most probable tokens are reported with each token.
      keep: whether its cache is kept when it ends, in `kept`: one row.
      owner, index: whom its tokens are for, and its number there.
      record: the experts of its row when it left its slot, and the padding in the row
        (`Decoder.records`).
      likely: for each device call, the most probable tokens [n, A] and their log-probabilities
        (`SharedDistribution.alternatives`); None if they are not recorded.
      tokens: the context and the new tokens.
    """

    context: Sequence[int]
    key: np.ndarray
    max_tokens: int
    end_ids: tuple[int, ...]
    drawn: int = 0
    sampling: Sampling | None = None
    min_tokens: int = 0
    alternatives: int = 0
    keep: bool = False
    owner: Any = None
    index: int = 0
    kept: Any = None
    record: Any = None
    likely: list[tuple[np.ndarray, np.ndarray]] | None = None
    tokens: list[int] = field(init=False)
    new: list[int] = field(init=False)  # also those that are not yet in `tokens`
    begun: int = field(init=False)  # `drawn` at the start

    def __post_init__(self) -> None:
        self.tokens, self.new, self.begun = list(self.context), [], self.drawn

    @property
    def length(self) -> int:
        """The number of tokens, also while the newest are not yet in `tokens`."""
        return len(self.context) + self.drawn - self.begun

    @property
    def penalizes(self) -> bool:
        own = self.sampling
        return own is not None and (own.repetition_penalty != 1 or own.presence_penalty != 0)

    def seen(self, V: int) -> np.ndarray:
        """Returns which tokens of the vocabulary have occurred, uint8 [V] (`penalized`)."""
        seen_V, first = np.zeros(V, np.uint8), len(self.context) - self.begun
        seen_V[list(self.context[:first])] = PROMPT
        seen_V[[*self.context[first:], *self.new]] = RESPONSE
        return seen_V

    def experts(self, columns: int, dtype: str) -> np.ndarray:
        """Returns the experts of its tokens, as in `Completion` (`DecoderConfig.record`).

        They are 0 for the last token, which was drawn and not read, and before it has a slot.
        """
        experts = np.zeros((len(self.tokens), columns), dtype)
        if self.record is not None:
            row_1SX, padding = self.record
            read = slice(padding, padding + len(experts) - 1)
            experts[:-1] = np.asarray(to_host(row_1SX))[0, read]
        return experts

    def alternatives_drawn(self, most: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Returns the `most` most probable tokens at each new token, and their log-probabilities.

        Both are as in `Completion`: None if they are not recorded.
        """
        if self.likely is None:
            return None, None
        nothing = np.zeros((0, most), np.int32), np.zeros((0, most), np.float32)
        tokens, logprobs = zip(nothing, *self.likely, strict=True)
        return np.concatenate(tokens), np.concatenate(logprobs)

    @property
    def needs_extras(self) -> bool:
        """Whether `decode` needs its `extras` for the next tokens."""
        return self.alternatives > 0 or self.drawn < self.begun + self.min_tokens


def check_request(context: Sequence[int], completions: int, max_tokens: int, longest: int) -> None:
    """Checks that there is something to draw, and that the model has positions for it.

    Args:
      completions: the number of completions of the context.
      longest: the number of positions of the model.

    Raises:
      InputError: there is nothing to draw, or the model has too few positions.
    """
    if not context or not completions or max_tokens < 1:
        raise InputError("A request needs at least one token, one random key and max_tokens=1.")
    if len(context) + max_tokens > longest:
        raise InputError(
            f"A request of {len(context)} tokens with max_tokens={max_tokens} is longer "
            f"than the {longest} positions of the model."
        )


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
        self.sequences[slot] = None
        self.state.active_n[slot] = False

    def by_shard(self, shards: int) -> list[list[int]]:
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
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))


def key_data(seed: int) -> np.ndarray:
    """Returns the data of a random key from a seed, from 0 to 2**64 - 1.

    They are the upper and the lower 32 bits of the seed, as `jax.random.key` makes them with 64-bit
    integers on, repeated to the length of the data; with them off, it cuts the seed to 32 bits.
    """
    return np.resize(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), key_shape().shape[0])


class Chunk(NamedTuple):
    """New tokens of one sequence.

    Attributes:
      tokens, logprobs: the new tokens and their log-probabilities.
      alternatives: for each token, the most probable tokens with their log-probabilities, the most
        probable first; empty if the sequence wants none.
      finish: the reason why the sequence ended; None if it goes on.
      version: the weight version that drew the tokens.
    """

    sequence: TokenSequence
    tokens: list[int]
    logprobs: list[float]
    alternatives: list[list[tuple[int, float]]]
    finish: Finish | None
    version: str = ""


class Ended(NamedTuple):
    """A device call that has ended.

    Attributes:
      slots: of each sequence that it decoded: the slot, the number of new tokens, and whether it
        goes on.
      size: the number of slots.
      seconds: from the start of the call; nan if it had to wait for other calls.
    """

    outcome: Outcome
    drawn: Draws
    slots: list[tuple[int, TokenSequence, int, bool]]
    size: int
    seconds: float

    def chunks(self, version: str = "") -> list[Chunk]:
        """Returns the new tokens of each sequence, drawn by a weight version, and adds them to it.

        It is called once.
        """
        shows = self.drawn.others_BA.size > 0
        others = jax.device_get((self.drawn.others_BA, self.drawn.other_logprobs_BA))
        chunks = []
        for slot, sequence, count, goes_on in self.slots:
            tokens = self.outcome.tokens_nM[slot, :count].tolist()
            logprobs = self.outcome.logprobs_nM[slot, :count].tolist()
            sequence.tokens += tokens
            if sequence.likely is not None:
                sequence.likely.append(tuple(x[slot, :count] for x in others))
            shown, finish = [], None
            if shows and (wanted := sequence.alternatives):
                shown = in_support(*(x[slot, :count, :wanted].tolist() for x in others))
            if not goes_on:
                finish = Finish.STOP if tokens[-1] in sequence.end_ids else Finish.LENGTH
            chunks.append(Chunk(sequence, tokens, logprobs, shown, finish, version))
        return chunks

    def not_numbers(self) -> list[TokenSequence]:
        logprobs_nM = self.outcome.logprobs_nM
        return [
            sequence
            for slot, sequence, count, _ in self.slots
            if np.isnan(logprobs_nM[slot, :count]).any()
        ]
