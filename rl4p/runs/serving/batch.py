"""The completions that the server decodes together.

Each running completion has a slot. A device call decodes a few tokens of every slot. Between two
calls, ended completions leave their slots, and new ones are placed in free slots.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.model.cache import Cache
from rl4p.model.policy import Policy, padded_width
from rl4p.rollout.continuous import response_room
from rl4p.runs.serving import programs
from rl4p.runs.serving.programs import MOST_STEPS, Constants, Found, Outcome, State
from rl4p.runs.serving.work import Work
from rl4p.types import Params

SIZES = (4, 16, 32)  # numbers of slots; each compiles once
SECONDS_PER_CALL = 0.012  # shorter calls cost more on the host, longer ones delay new work
FIRST_STEPS = 8  # of a call while the seconds of a step are not known
TOKENS_PER_PREFILL = 256  # of a call that prefills several contexts
ROWS_PER_PREFILL = 8
CALLS_BEFORE_SHRINKING = 8
SLOWER = 1.02  # the most by which the estimated seconds of a step grow from call to call


@dataclass(eq=False, kw_only=True)
class Running:
    """A completion that is decoded or waits for a slot.

    Attributes:
      work, index: what it continues, and the number of its seed.
      owner: the object that the scheduler delivers to.
      tokens: the context and the tokens drawn so far.
      drawn: the number of tokens drawn so far.
      newest: the newest token.
    """

    work: Work
    index: int
    owner: Any
    tokens: list[int] = field(init=False)
    drawn: int = 0
    newest: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.work.tokens)
        self.newest = self.tokens[-1]

    @property
    def needs_extras(self) -> bool:
        """Whether `programs.decode` needs its `extras` for the next tokens."""
        return self.work.alternatives > 0 or self.drawn < self.work.min_tokens

    @property
    def length(self) -> int:
        """The number of tokens, also while the newest are not yet in `tokens`."""
        return len(self.work.tokens) + self.drawn


class Drawn(NamedTuple):
    """The tokens that a device call added to a completion, named as in `work.Part`.

    `ended` is true for the last tokens of a completion, and `nan` if the log-probability of one is
    not a number; such a completion has also ended.
    """

    running: Running
    tokens: list[int]
    logprobs: list[float]
    alternatives: list[list[tuple[int, float]]]
    ended: bool
    nan: bool


class Ended(NamedTuple):
    """A device call that has ended, and the completions that were in its slots before."""

    outcome: Outcome
    found: Found
    slots: list[tuple[int, Running, int, bool, bool]]  # slot, completion, new tokens, ended, nan

    def drawn(self) -> list[Drawn]:
        """Returns the new tokens of each completion, and adds them to it."""
        shows = self.found.others_nMA.size > 0
        others = jax.device_get((self.found.others_nMA, self.found.other_logprobs_nMA))
        result = []
        for slot, running, count, ended, nan in self.slots:
            tokens = self.outcome.tokens_nM[slot, :count].tolist()
            logprobs = self.outcome.logprobs_nM[slot, :count].tolist()
            running.tokens += tokens
            shown = []
            if shows and (wanted := running.work.alternatives):
                shown = of_steps(*(x[slot, :count, :wanted].tolist() for x in others))
            result.append(Drawn(running, tokens, logprobs, shown, ended, nan))
        return result


class Batch:
    """The running completions.

    `begin` starts a device call, and `end` waits for its tokens; the caller has time for other
    things in between. All other methods are called after `end` and before `begin`.

    Args:
      slots: the most completions that run at a time.
    """

    def __init__(self, policy: Policy, slots: int) -> None:
        self.policy, self.mesh, self.slots = policy, policy.mesh.sampling, slots
        shards = self.mesh.row_shards
        self.sizes = sorted({-(-min(size, slots) // shards) * shards for size in (*SIZES, slots)})
        self.seconds_per_step: dict[int, float] = {}  # by the number of slots
        self.prefills = self.prefilled_tokens = self.calls = 0
        self.clear()

    def clear(self) -> None:
        """Removes all completions and releases the cache."""
        self.cache: Any = None  # a Cache, once there is something to decode
        self.rows: list[Running | None] = []  # of each slot
        self.contexts: dict[tuple[int, ...], tuple[Cache, int]] = {}
        self.on_device: tuple[State, Constants] | None = None
        self.in_flight: Any = None
        self.small_calls, self.untimed = 0, True

    @property
    def columns(self) -> int:
        """The number of tokens of a sequence that the cache has room for."""
        return 0 if self.cache is None else self.cache.positions_BS.shape[1]

    def running(self) -> list[Running]:
        return [row for row in self.rows if row is not None]

    def remove(self, rows: Sequence[Running]) -> None:
        """Frees the slots of completions."""
        leaving = set(map(id, rows))
        self.rows = [None if id(row) in leaving else row for row in self.rows]
        self.on_device = None

    def zero_free_slots(self) -> None:
        """Zeroes the cache of free slots: a NaN would spoil even the attention that masks it."""
        if self.cache is not None:
            free_n = np.array([row is None for row in self.rows])
            self.cache = programs.cleared(self.cache, free_n)

    def admit(self, params: Params, new: Sequence[Running], *, keep: bool) -> None:
        """Prefills the contexts of completions, each once, and places them in free slots.

        It makes room for the next device call, and is therefore called before each.

        Args:
          new: at most as many completions as there are free slots.
          keep: whether the prefilled contexts may be needed again.
        """
        self.fit(new)
        if new:
            contexts = [tuple(x.tokens) for x in new]
            self.prefill(params, contexts)
            self.place(new, contexts)
        if not keep:
            self.contexts.clear()

    def fit(self, new: Sequence[Running]) -> None:
        """Makes room in the cache for new completions and the tokens of a device call."""
        running, n, columns = self.running(), len(self.rows), self.columns
        size = min(size for size in self.sizes if size >= len(running) + len(new))
        self.small_calls = self.small_calls + 1 if size < n else 0
        if size < n and self.small_calls < CALLS_BEFORE_SHRINKING:
            size = n
        longest = max(x.length for x in (*running, *new))
        widest = max((padded_width(x.length) for x in new), default=0)
        room = self.columns_for(max(longest + self.steps(size), widest))
        if room < columns and size == n and room > columns // 4:
            room = columns
        if (size, room) == (n, columns):
            return
        if self.cache is None:
            self.cache = programs.empty(self.policy.decoder, size, room, self.mesh)
            if self.mesh.size == 1:
                self.cache = replicated(self.mesh, self.cache)
        else:
            order = [slot for slot, row in enumerate(self.rows) if row is not None]
            rows_n = np.zeros(size, np.int32)
            rows_n[: len(order)] = order
            self.cache = programs.resized(self.cache, rows_n, room, self.mesh)
        self.rows = [*running, *[None] * (size - len(running))]
        self.on_device, self.small_calls, self.untimed = None, 0, True

    def columns_for(self, tokens: int) -> int:
        """Returns the number of columns of a cache for sequences of so many tokens."""
        most = padded_width(self.policy.decoder.config.max_positions)
        return response_room(tokens - 1, most)

    def steps(self, size: int) -> int:
        """Returns the number of decode steps of the next device call."""
        seconds = self.seconds_per_step.get(size)
        if seconds is None:
            return FIRST_STEPS
        return int(min(max(1, round(SECONDS_PER_CALL / seconds)), MOST_STEPS))

    def prefill(self, params: Params, contexts: Sequence[tuple[int, ...]]) -> None:
        """Computes the caches of contexts that are not in `contexts`, equal widths together."""
        by_width: dict[int, list[tuple[int, ...]]] = {}
        for context in dict.fromkeys(contexts):
            if context not in self.contexts:
                by_width.setdefault(padded_width(len(context)), []).append(context)
        for width, several in sorted(by_width.items()):
            P = max(1, min(ROWS_PER_PREFILL, TOKENS_PER_PREFILL // width))
            for start in range(0, len(several), P):
                part = several[start : start + P]
                tokens_PT, lengths_P = np.zeros((P, width), np.int32), np.ones(P, np.int32)
                for row, context in enumerate(part):
                    tokens_PT[row, : len(context)], lengths_P[row] = context, len(context)
                arrays = replicated(self.mesh, (tokens_PT, lengths_P))
                cache = programs.prefill(self.policy.decoder, params, *arrays)
                self.contexts |= {context: (cache, row) for row, context in enumerate(part)}
                self.prefills += len(part)
                self.prefilled_tokens += sum(map(len, part))

    def place(self, new: Sequence[Running], contexts: Sequence[tuple[int, ...]]) -> None:
        """Puts completions in free slots, with their prefilled contexts."""
        free = [slot for slot, row in enumerate(self.rows) if row is None]
        pairs: dict[int, list[tuple[int, int]]] = {}  # slots and rows, by the cache of the rows
        caches: dict[int, Cache] = {}
        for running, context, slot in zip(new, contexts, free, strict=False):
            cache, row = self.contexts[context]
            caches[id(cache)] = cache
            pairs.setdefault(id(cache), []).append((slot, row))
            self.rows[slot] = running
        for name, prefilled in caches.items():
            slots_n, rows_n = np.zeros((2, len(self.rows)), np.int32)
            count = len(pairs[name])
            slots_n[:count], rows_n[:count] = zip(*pairs[name], strict=True)
            arrays = slots_n, rows_n, np.int32(count)
            self.cache = programs.place(self.cache, prefilled, *arrays)
        self.on_device, self.untimed = None, True

    def begin(self, params: Params, *, waiting: bool) -> None:
        """Starts a device call of several decode steps, without waiting for it.

        Args:
          waiting: whether completions wait for a slot; the call then ends once some are free.
        """
        count, steps = len(self.running()), self.steps(len(self.rows))
        if self.on_device is None:
            self.on_device = replicated(self.mesh, (state_of(self.rows), constants_of(self.rows)))
        state, constants = self.on_device
        enough = count - max(1, count // 8) if waiting else 0
        began = time.perf_counter()
        self.cache, state, packed, found = programs.decode(
            self.policy.decoder,
            params,
            self.cache,
            state,
            constants,
            np.int32(steps),
            np.int32(enough),
            extras=any(row.needs_extras for row in self.running()),
        )
        self.on_device = state, constants
        self.in_flight = packed, found, began
        self.calls += 1

    def end(self) -> Ended:
        """Waits for the device call. Ended completions leave their slots.

        `Ended.drawn` must be called before `admit`, if that places the same completions again.
        """
        (packed, found, began), self.in_flight = self.in_flight, None
        outcome = Outcome.of(np.asarray(packed))
        self.time(time.perf_counter() - began, outcome.steps)
        drawn, active = outcome.drawn_n.tolist(), outcome.active_n.tolist()
        may_be_nan = bool(np.isnan(outcome.logprobs_nM[:, : outcome.steps]).any())
        slots, spoiled = [], False
        for slot, row in enumerate(self.rows):
            if row is None:
                continue
            count = drawn[slot] - row.drawn
            nan = may_be_nan and bool(np.isnan(outcome.logprobs_nM[slot, :count]).any())
            row.drawn = drawn[slot]
            if count:
                row.newest = int(outcome.tokens_nM[slot, count - 1])
            slots.append((slot, row, count, nan or not active[slot], nan))
            spoiled |= nan
        for slot, _, _, ended, _ in slots:
            if ended:
                self.rows[slot] = None
        if spoiled:
            self.on_device = None
            self.zero_free_slots()
        return Ended(outcome, found, slots)

    def time(self, seconds: float, steps: int) -> None:
        """Learns the seconds of a decode step; calls that first placed something are not timed.

        The estimate follows the fastest calls, since others shared the processor with clients.
        Shorter calls would only make that worse.
        """
        n = len(self.rows)
        if steps and not self.untimed:
            found = seconds / steps
            self.seconds_per_step[n] = min(found, SLOWER * self.seconds_per_step.get(n, found))
        self.untimed = False


def replicated(mesh: Mesh, tree: Any) -> Any:
    """Places arrays on the devices of a mesh.

    Those of a single device must not name a mesh: the compiler then gives the same array another
    name in the results of each program, and a program compiles once more for each name.
    """
    if mesh.size > 1:
        return mesh.replicate(tree)
    return jax.device_put(tree, mesh.devices.devices.flat[0])


def of_steps(
    tokens_MA: list[list[int]], logprobs_MA: list[list[float]]
) -> list[list[tuple[int, float]]]:
    """Returns pairs of tokens and log-probabilities, without those outside the support."""
    return [
        [pair for pair in zip(*both, strict=True) if pair[1] > -math.inf]
        for both in zip(tokens_MA, logprobs_MA, strict=True)
    ]


def state_of(rows: Sequence[Running | None]) -> State:
    """Returns the state of the slots; that of a free slot is the same as of an ended one."""
    return State(
        token_n=np.array([row.newest if row else 0 for row in rows], np.int32),
        length_n=np.array([row.length if row else 1 for row in rows], np.int32),
        drawn_n=np.array([row.drawn if row else 0 for row in rows], np.int32),
        active_n=np.array([row is not None for row in rows]),
    )


def constants_of(rows: Sequence[Running | None]) -> Constants:
    """Returns the constants of the slots; those of a free slot are arbitrary."""
    n, works = len(rows), [(slot, row) for slot, row in enumerate(rows) if row]
    most = max(len(row.work.end_ids) for _, row in works)
    ends_nE = np.full((n, 1 << max(2, (most - 1).bit_length())), -1, np.int32)  # few sizes
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    keys_n = np.zeros((n, *shape), np.uint32)
    for slot, row in works:
        work = row.work
        ends_nE[slot, : len(work.end_ids)] = work.end_ids
        keys_n[slot] = key_data(work.seeds[row.index], shape[0])

    def values(default: float, dtype: type, of: Callable[[Work], float]) -> np.ndarray:
        return np.array([of(row.work) if row else default for row in rows], dtype)

    return Constants(
        limit_n=values(0, np.int32, lambda work: work.max_tokens),
        least_n=values(0, np.int32, lambda work: work.min_tokens),
        temperature_n=values(0, np.float32, lambda work: work.sampling.temperature),
        top_k_n=values(0, np.int32, lambda work: work.sampling.top_k),
        top_p_n=values(1, np.float32, lambda work: work.sampling.top_p),
        ends_nE=ends_nE,
        keys_n=keys_n,
    )


def key_data(seed: int, words: int) -> np.ndarray:
    """Returns the data of a random key as JAX makes it from a seed with 64-bit integers on."""
    return np.resize(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), words)
