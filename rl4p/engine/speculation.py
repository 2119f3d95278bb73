"""Speculation: drafts of tokens, the program that decodes with them, and when they are worth it.

Drafts of the next tokens are looked up in texts that continue in a similar way. The look-up of
n-grams is that of prompt look-up decoding (Saxena 2023, github.com/apoorvumang/
prompt-lookup-decoding): no second model, and texts of other responses to the same prompt.

A step reads the newest token of a sequence and a draft of the next ones. The logits
after each of them draw a token, with the key that this token has anyway. The draws up to the first
one that differs from the draft are therefore the tokens that `decode` draws one by one, up to
rounding of the logits, and no token has to be rejected by chance, as in speculative sampling
(2211.17192).

The keys and values of rejected drafts stay in the cache, in columns behind the newest token. No
token sees them: the next step writes its own from the newest token on, before any of its tokens
attends, and positions hide the columns behind a token.

Speculation changes tokens and log-probabilities by rounding alone. Two equal runs must have equal
digits, so the choice depends on tokens and sizes, and never on measured times.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Params
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.processes import to_host
from rl4p.engine.cache import divided
from rl4p.engine.decode import (
    MOST_STEPS,
    Distribution,
    SlotConstants,
    SlotState,
    columns_to_fill,
    packed,
)
from rl4p.engine.sequence import TokenSequence
from rl4p.model.cache import FEW, Cache
from rl4p.model.decoder import Decoder
from rl4p.model.policy import padded_width
from rl4p.model.prompt_cache import PromptCache
from rl4p.model.sampling import Draws

LONGEST_MATCH = 8  # tokens that are compared
NO_TOKEN = -1


class Texts(NamedTuple):
    """The texts in which the drafts of n slots are looked up.

    A row holds other responses, a `NO_TOKEN` after each, and then the sequence of the slot itself.

    Attributes:
      tokens_nC: int32, the texts.
      begin_n: int32, the column of the first token of the sequence itself.
    """

    tokens_nC: Array
    begin_n: Array


def look_up(tokens_nC: Array, end_n: Array, k: int) -> jax.Array:
    """Returns the k tokens that followed the longest match of each row's last tokens, int32 [n, k].

    Of several places with a match of the same length the last one counts. A match near the end is
    continued periodically. Without a match, the draft is arbitrary.

    Args:
      tokens_nC: int32, `NO_TOKEN` matches nothing.
      end_n: int32, the number of known tokens of each row.
    """
    C = tokens_nC.shape[1]
    columns_1C, end_n1 = jnp.arange(C, dtype=jnp.int32)[None], end_n[:, None]
    matches_nC = columns_1C < end_n1
    lengths_nC = jnp.zeros(tokens_nC.shape, jnp.int32)
    for i in range(1, LONGEST_MATCH + 1):
        last_n1 = jnp.take_along_axis(tokens_nC, jnp.maximum(end_n1 - i, 0), axis=1)
        before_nC = jnp.pad(tokens_nC, ((0, 0), (i, 0)), constant_values=NO_TOKEN)[:, :C]
        matches_nC &= (before_nC == last_n1) & (last_n1 != NO_TOKEN)
        lengths_nC += matches_nC.astype(jnp.int32)
    best_n1 = jnp.max(lengths_nC * C + columns_1C, axis=1, keepdims=True) % C
    best_n1 = jnp.clip(best_n1, 0, jnp.maximum(end_n1 - 1, 0))
    period_n1 = jnp.maximum(end_n1 - best_n1, 1)
    columns_nk = best_n1 + jnp.arange(k, dtype=jnp.int32)[None] % period_n1
    return jnp.maximum(jnp.take_along_axis(tokens_nC, columns_nk, axis=1), 0)


def put(rows_nC: Array, new_nT: Array, column_n: Array) -> Array:
    """Writes new values to each row, from the row's own column on; none outside the row.

    It selects, since a TPU makes a loop over the rows of a scatter.
    """
    columns_1C = jnp.arange(rows_nC.shape[1], dtype=jnp.int32)[None]
    for t in range(new_nT.shape[1]):
        here_nC = columns_1C == column_n[:, None] + t
        rows_nC = jnp.where(here_nC, new_nT[:, t, None], rows_nC)
    return rows_nC


PLACES, BETWEEN = 4, 4  # of a text where `agreement` looks drafts up, and the tokens between them


@partial(jax.jit, static_argnames="k")
def agreement(tokens_nC: Array, first_n: Array, end_n: Array, k: int) -> jax.Array:
    """Returns at how many places of texts 1, 2, ... k + 1 tokens would have been accepted.

    Args:
      first_n, end_n: the columns of the first of the tokens that count, and behind the last.

    Returns:
      int32 [k + 1]: k drafted tokens that all agree are k + 1 accepted ones.
    """
    counts_T = jnp.zeros(k + 1, jnp.int32)
    columns_1k = jnp.arange(k, dtype=jnp.int32)[None]
    for place in range(PLACES):
        at_n = end_n - k - place * BETWEEN
        counts_n = at_n >= first_n
        at_n1 = jnp.maximum(at_n, 0)[:, None]
        draft_nk = look_up(tokens_nC, at_n1[:, 0], k)
        agrees_nk = draft_nk == jnp.take_along_axis(tokens_nC, at_n1 + columns_1k, axis=1)
        accepted_n1 = jnp.sum(jnp.cumprod(agrees_nk.astype(jnp.int32), axis=1), axis=1)[:, None]
        one_nT = accepted_n1 == jnp.arange(k + 1, dtype=jnp.int32)[None]
        counts_T += jnp.sum(one_nT & counts_n[:, None], axis=0, dtype=jnp.int32)
    return counts_T


FEW_STEPS = 16  # the most decode steps of one device call


@partial(jax.jit, static_argnames=("decoder", "k", "mesh"), donate_argnames=("cache",))
def speculate(
    decoder: Decoder,
    params: Params,
    cache: Cache,
    state: SlotState,
    constants: SlotConstants,
    distribution: Distribution,
    texts: Texts,
    steps: Array,
    enough: Array,
    prompts: PromptCache | None = None,
    *,
    k: int,
    mesh: Mesh,
) -> tuple[Cache, tuple[jax.Array, Draws, jax.Array]]:
    """Decodes until at most `enough` sequences go on, or one has nearly filled its cache.

    Args:
      cache: has k columns more than `decode` needs.
      distribution: without penalties; `SlotConstants.least_n` has no effect either.
      steps: the most decode steps, at most `FEW_STEPS`.
      k: the number of tokens of a draft.

    Returns:
      The cache; the numbers of `Outcome` and the draws, as those of `decode`; and in how many steps
      each slot got 1, 2, ... T tokens, int32 [n, T].
    """
    c, S, T = constants, columns_to_fill(cache, prompts), k + 1
    n, first_n = state.token_n.shape[0], jnp.asarray(state.drawn_n)
    ones_nT, ahead_1T = jnp.ones((n, T), jnp.int32), jnp.arange(T, dtype=jnp.int32)[None]
    keys_N = jax.random.wrap_key_data(jnp.repeat(jnp.asarray(c.keys_n), T, axis=0))
    each = jax.tree.map(lambda x: jnp.repeat(x, T, axis=0) if jnp.ndim(x) else x, distribution)

    def decode_step(carry: tuple) -> tuple:
        step, cache, (token_n, length_n, drawn_n, active_n), tokens_nC, out, steps_nT = carry
        end_n, column_n = texts.begin_n + length_n, c.padding_n + length_n - 1
        draft_nk = look_up(tokens_nC, end_n, k)
        positions_nT = (length_n - 1)[:, None] + ahead_1T
        inputs = jnp.concatenate([token_n[:, None], draft_nk], axis=1), positions_nT, ones_nT
        hidden_nTD, cache = decoder.extend(params, *inputs, cache, column_n, mesh, prompts)
        logits_NV = decoder.logits(params, hidden_nTD).reshape(n * T, -1)
        number_nT = drawn_n[:, None] + ahead_1T
        inputs = logits_NV, jnp.repeat(active_n, T), keys_N, number_nT.ravel(), 0
        draws = each.draw(*inputs, exact=decoder.exact)
        drawn_nT, logprob_nT = (x.reshape(n, T) for x in (draws.token_B, draws.logprob_B))
        ended_nT = jnp.any(drawn_nT[..., None] == c.ends_nE[:, None], axis=-1)
        ended_nT |= number_nT + 1 >= c.limit_n[:, None]
        room_n1 = (S - k - c.padding_n - length_n)[:, None]
        goes_nT = ~ended_nT & (ahead_1T + 1 < room_n1)
        goes_nk = goes_nT[:, :-1] & (drawn_nT[:, :-1] == draft_nk)
        last_n = jnp.sum(jnp.cumprod(goes_nk.astype(jnp.int32), axis=1), axis=1)
        newest_n, ended_n = (
            jnp.take_along_axis(x, last_n[:, None], axis=1)[:, 0] for x in (drawn_nT, ended_nT)
        )
        count_n = jnp.where(active_n, last_n + 1, 0)
        out = tuple(
            put(x, new, drawn_n - first_n)
            for x, new in zip(out, (drawn_nT, logprob_nT), strict=True)
        )
        tokens_nC = put(tokens_nC, drawn_nT, end_n)
        steps_nT = steps_nT + (count_n[:, None] == ahead_1T + 1).astype(jnp.int32)
        token_n = jnp.where(active_n, newest_n, token_n)
        length_n, drawn_n = length_n + count_n, drawn_n + count_n
        state = SlotState(token_n, length_n, drawn_n, active_n & ~ended_n)
        return step + 1, cache, state, tokens_nC, out, steps_nT

    def worth(carry: tuple) -> Array:
        # As in `decode`: a single sum, below 0 if the cache lacks room for a sequence.
        step, _, state, *_ = carry
        fits_n = c.padding_n + state.length_n + k < S
        going = jnp.sum(jnp.where(state.active_n, jnp.where(fits_n, 1, -n), 0), dtype=jnp.int32)
        return (step < steps) & (going > enough)

    M = FEW_STEPS * T
    out = jnp.zeros((n, M), jnp.int32), jnp.zeros((n, M), jnp.float32)
    begin = jnp.int32(0), cache, SlotState(*map(jnp.asarray, state))
    carry = *begin, jnp.asarray(texts.tokens_nC), out, jnp.zeros((n, T), jnp.int32)
    step, cache, state, _, out, steps_nT = jax.lax.while_loop(worth, decode_step, carry)
    none_nM0 = jnp.zeros((n, M, 0), jnp.int32)
    drawn = Draws(*out, none_nM0, none_nM0.astype(jnp.float32))
    return divided(cache, mesh), (packed(step, state, drawn), drawn, steps_nT)


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
    """Counts of the tokens of sequences, and of the decode steps that drew them."""

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

    def forget(self) -> None:
        # Of each place in a draft: how often all tokens before it, and how often it too was right.
        self.tried_k, self.right_k = np.zeros((2, self.most), np.int64)

    def cost(self, slots: int, k: int) -> float:
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
