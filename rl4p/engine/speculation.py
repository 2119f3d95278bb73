"""The choice of when to speculate, and the texts of drafts, on the host.

Speculation changes tokens and log-probabilities by rounding alone. Two equal runs must have equal
digits, so the choice depends on tokens and sizes, and never on measured times.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from rl4p.base.types import Params
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.processes import to_host
from rl4p.engine.decode import MOST_STEPS
from rl4p.engine.drafts import LONGEST_MATCH, NO_TOKEN, Texts, agreement
from rl4p.engine.layout import Layout
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.speculate import FEW_STEPS
from rl4p.model.cache import FEW
from rl4p.model.policy import padded_width

MOST_DRAFTED = FEW - 1  # with the next token, the most columns that a TPU writes one by one
MOST_POSITIONS = 128  # of a step on a device, unless it has more slots: each position has logits
RESPONSES, MOST_RESPONSES = 3, 16  # of a context: there is room for 3 of the largest length
CONTEXTS = 4096  # whose responses are kept
LEAST_GAIN = 1.1  # tokens per unit of cost, of which a step without a draft has 1
LIKELY = 0.75  # share of the tokens of a step that might be accepted

# A decode step reads all parameters, and takes as long as the products of so many tokens. Caches of
# a CPU hold few parameters, which it then reads faster.
TOKENS_OF_PARAMETERS = {"cpu": 8, "gpu": 256, "tpu": 256}
CACHED, TOKENS_OF_CACHED = 2**26, 3  # bytes


class Counts:
    """The tokens of sequences, and the decode steps that drew them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.tokens = self.steps = self.speculated_tokens = self.speculated_steps = 0

    def metrics(self) -> dict[str, float]:
        """Returns the mean tokens of a sequence in a decode step: of all, and of those with drafts.

        `rollout/drafted` is the share of the tokens that these drew.
        """
        metrics = {
            "rollout/tokens_per_decode_step": self.tokens / self.steps if self.steps else 1.0,
            "rollout/drafted": self.speculated_tokens / max(self.tokens, 1),
        }
        if self.speculated_steps:
            mean = self.speculated_tokens / self.speculated_steps
            metrics["rollout/tokens_per_drafted_step"] = mean
        return metrics


class NextCall(NamedTuple):
    """What the next device call does.

    Attributes:
      k: the number of drafted tokens; 0 for none.
      texts: where they are looked up; None for no drafts.
      steps: the most decode steps before the next call is chosen.
    """

    k: int
    texts: Texts | None
    steps: int


class Speculation:
    """Chooses the number of drafted tokens of each device call.

    Args:
      most: the most drafted tokens.
      length: the most tokens of a sequence.
      slots: the largest number of slots.
      shards: the number of parts that the slots are divided into, each of which some devices
        process together.
      parameter_tokens: the cost of reading the parameters, as a number of tokens
        (`parameter_tokens`).
    """

    def __init__(
        self,
        most: int,
        *,
        length: int,
        slots: int,
        shards: int,
        parameter_tokens: int,
        counts: Counts,
    ) -> None:
        self.most, self.shards, self.counts = most, shards, counts
        self.parameter_tokens = parameter_tokens
        self.positions = max(slots, MOST_POSITIONS * shards)  # the most of a step
        self.own = length + most + 1  # columns, with those of rejected drafts
        self.columns = (1 + RESPONSES) * padded_width(self.own)
        self.ended: list[TokenSequence] = []
        self.responses: dict[tuple[int, ...], deque[np.ndarray]] = {}
        self.slots, self.pause, self.rest = 0, FEW_STEPS, 0  # steps until drafts are tried again
        self.forget()

    @staticmethod
    def of(most: int, layout: Layout, mesh: Mesh, params: Params, counts: Counts) -> "Speculation":
        """Returns the choice for a batch of this layout, on a mesh with these parameters."""
        return Speculation(
            most,
            length=layout.most,
            slots=max(layout.sizes),
            shards=mesh.size // mesh.devices_per_row,
            parameter_tokens=parameter_tokens(mesh.platform, params),
            counts=counts,
        )

    def forget(self) -> None:
        """Forgets which drafts were accepted."""
        # Of each place in a draft: how often all tokens before it, and how often it too was right.
        self.tried_k, self.right_k = np.zeros((2, self.most), np.int64)

    def cost(self, slots: int, k: int) -> float:
        """Returns the estimated time of a step with k drafted tokens, in steps without."""
        read, n = self.parameter_tokens, slots / self.shards
        return (read + n * (k + 1)) / (read + n)

    def likely(self, slots: int) -> list[int]:
        """Returns the numbers of drafted tokens that may pay for so many slots, and have room."""
        lengths = sorted({k for k in (self.most, self.most // 2) if k})
        lengths = [k for k in lengths if slots * (k + 1) <= self.positions]
        return [k for k in lengths if self.cost(slots, k) < LIKELY * (k + 1)]

    def choose(self, sequences: Sequence[TokenSequence | None], *, allowed: bool) -> NextCall:
        """Chooses for the sequences in slots.

        Drafts are worth it if the accepted tokens of a step are more than its cost. Without
        speculation just before, drafts are compared with the newest tokens afterwards, which
        needs no decode step. After drafts that were not worth it come 16, 32, and then 64 steps
        without.

        Args:
          allowed: whether all sequences may have drafts.
        """
        slots = len(sequences)
        if slots != self.slots or self.ended:  # other costs, or more texts
            self.slots, self.pause, self.rest = slots, FEW_STEPS, 0
        self.keep_responses()
        likely = self.likely(slots) if allowed else []
        if not likely or self.rest > 0:
            self.forget()
            return NextCall(0, None, min(self.rest, MOST_STEPS) if likely else MOST_STEPS)
        texts = self.texts(sequences)
        if not self.tried_k.any():
            self.learn(self.agreement(texts, sequences))
        gain, k = max((self.expected(k) / self.cost(slots, k), k) for k in likely)
        if gain >= LEAST_GAIN:
            self.pause = FEW_STEPS
            return NextCall(k, texts, FEW_STEPS)
        if self.tried_k.any():
            self.rest, self.pause = self.pause, min(2 * self.pause, MOST_STEPS)
        self.forget()
        return NextCall(0, None, self.rest or FEW_STEPS)

    def expected(self, k: int) -> float:
        """Returns the expected tokens of a step with k drafted tokens."""
        tried = np.flatnonzero(self.tried_k)
        if not len(tried):
            return 1.0
        place_k = np.minimum(np.arange(k), tried[-1])  # later places are as good as the last tried
        rates_k = self.right_k[place_k] / np.maximum(self.tried_k[place_k], 1)
        return 1.0 + float(np.cumprod(rates_k).sum())

    def learn(self, steps_T: np.ndarray) -> None:
        """Adds how many steps gave a sequence 1, 2, ... T tokens.

        Earlier numbers count half as much.
        """
        reached_T = np.cumsum(steps_T[::-1])[::-1]  # steps with so many tokens, or more
        for numbers_k, new_k in ((self.tried_k, reached_T[:-1]), (self.right_k, reached_T[1:])):
            numbers_k //= 2
            numbers_k[: len(new_k)] += new_k

    def add(
        self,
        steps: int,
        steps_nT: jax.Array | None,
        sequences: Sequence[tuple[TokenSequence, int, bool]],
    ) -> None:
        """Adds the tokens of a device call.

        Args:
          steps: the number of decode steps.
          steps_nT: in how many steps each slot got 1, 2, ... T tokens; None without speculation.
          sequences: each sequence, the number of its new tokens, and whether it goes on.
        """
        self.ended += [sequence for sequence, _, goes_on in sequences if not goes_on]
        self.rest = max(0, self.rest - steps)
        tokens = of_sequences = sum(count for _, count, _ in sequences)
        if steps_nT is not None:
            steps_T = np.asarray(to_host(steps_nT)).sum(axis=0)
            of_sequences = int(steps_T.sum())
            self.counts.speculated_tokens += tokens
            self.counts.speculated_steps += of_sequences
            self.learn(steps_T)
        self.counts.tokens += tokens
        self.counts.steps += of_sequences

    def agreement(self, texts: Texts, sequences: Sequence[TokenSequence | None]) -> np.ndarray:
        """Returns at how many places of the newest tokens 1, 2, ... tokens would be accepted."""
        first_n, end_n = np.zeros((2, len(sequences)), np.int32)
        for slot, sequence in enumerate(sequences):
            if sequence is not None:
                first_n[slot] = texts.begin_n[slot] + len(sequence.context)
                end_n[slot] = texts.begin_n[slot] + len(sequence.tokens)
        return np.asarray(agreement(texts.tokens_nC, first_n, end_n, self.most))

    def texts(self, sequences: Sequence[TokenSequence | None]) -> Texts:
        """Returns each slot's sequence behind the newest responses to the same context."""
        tokens_nC = np.full((len(sequences), self.columns), NO_TOKEN, np.int32)
        begin_n = np.zeros(len(sequences), np.int32)
        for slot, sequence in enumerate(sequences):
            if sequence is None:
                continue
            begin = 0
            for response in self.responses.get(tuple(sequence.context), ()):
                if begin + len(response) + self.own <= self.columns:
                    tokens_nC[slot, begin : begin + len(response)] = response
                    begin += len(response)
            begin_n[slot] = begin
            tokens_nC[slot, begin : begin + len(sequence.tokens)] = sequence.tokens
        return Texts(tokens_nC, begin_n)

    def keep_responses(self) -> None:
        """Keeps the tokens of ended sequences, the newest first."""
        for sequence in self.ended:
            context = tuple(sequence.context)
            kept = self.responses.pop(context, deque(maxlen=MOST_RESPONSES))
            begin = max(0, len(context) - LONGEST_MATCH)
            kept.appendleft(np.array([*sequence.tokens[begin:], NO_TOKEN], np.int32))
            self.responses[context] = kept
            if len(self.responses) > CONTEXTS:
                del self.responses[next(iter(self.responses))]
        self.ended.clear()


def parameter_tokens(platform: str, params: Params) -> int:
    """Returns how many tokens' products take as long as reading the parameters once."""
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    if platform == "cpu" and size <= CACHED:
        return TOKENS_OF_CACHED
    return TOKENS_OF_PARAMETERS.get(platform, TOKENS_OF_PARAMETERS["gpu"])
