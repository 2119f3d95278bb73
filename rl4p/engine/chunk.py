"""The new tokens of a device call."""

from typing import NamedTuple

import jax
import numpy as np

from rl4p.base.types import Finish
from rl4p.engine.decode import Outcome, in_support
from rl4p.engine.sequence import TokenSequence
from rl4p.model.sampling import Draws


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
            shown, finish = [], None
            if shows and (wanted := sequence.alternatives):
                shown = in_support(*(x[slot, :count, :wanted].tolist() for x in others))
            if not goes_on:
                finish = Finish.STOP if tokens[-1] in sequence.end_ids else Finish.LENGTH
            chunks.append(Chunk(sequence, tokens, logprobs, shown, finish, version))
        return chunks

    def not_numbers(self) -> list[TokenSequence]:
        """Returns the sequences with a new log-probability that is not a number."""
        logprobs_nM = self.outcome.logprobs_nM
        return [
            sequence
            for slot, sequence, count, _ in self.slots
            if np.isnan(logprobs_nM[slot, :count]).any()
        ]
