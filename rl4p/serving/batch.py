"""The completions that the server decodes together.

Each running completion has a slot. A device call decodes a few tokens of every slot. Between two
calls, ended completions leave their slots, and new ones are placed in free slots.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.model.cache import Cache
from rl4p.model.policy import Policy, padded_width
from rl4p.rollout.continuous import response_room
from rl4p.serving import programs
from rl4p.serving.programs import MOST_STEPS, Found, Outcome
from rl4p.serving.slots import Running, Slots
from rl4p.types import Params

SIZES = (4, 16, 32)  # numbers of slots; each compiles once
SECONDS_PER_CALL = 0.03  # shorter calls cost more on the host, longer ones delay new work
FIRST_STEPS = 8  # of a call while the seconds of a step are not known
TOKENS_PER_PREFILL = 256  # of a call that prefills several contexts
ROWS_PER_PREFILL = 8
CALLS_BEFORE_SHRINKING = 8
SLOWER = 1.02  # the most by which the estimated seconds of a step grow from call to call


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
        self.policy, self.mesh = policy, policy.mesh.sampling
        shards = self.mesh.row_shards
        self.sizes = sorted({-(-min(size, slots) // shards) * shards for size in (*SIZES, slots)})
        self.seconds_per_step: dict[int, float] = {}  # by the number of slots
        self.prefills = self.prefilled_tokens = self.calls = 0
        self.clear()

    def clear(self) -> None:
        """Removes all completions and releases the cache."""
        self.cache: Any = None  # a Cache, once there is something to decode
        self.slots = Slots(0)
        self.contexts: dict[tuple[int, ...], tuple[Cache, int]] = {}
        self.in_flight: Any = None
        self.small_calls, self.untimed = 0, True

    @property
    def columns(self) -> int:
        """The number of tokens of a sequence that the cache has room for."""
        return 0 if self.cache is None else self.cache.positions_BS.shape[1]

    def counts(self) -> dict[str, float]:
        """Returns the numbers of device calls and of prefilled contexts and tokens."""
        return {
            "device_calls": float(self.calls),
            "prefilled_prompts": float(self.prefills),
            "prefilled_tokens": float(self.prefilled_tokens),
            "cache_columns": float(self.columns),
        }

    def running(self) -> list[Running]:
        return self.slots.running()

    def remove(self, rows: Sequence[Running]) -> None:
        """Frees the slots of completions."""
        leaving = set(map(id, rows))
        for slot, row in enumerate(self.slots.rows):
            if id(row) in leaving:
                self.slots.clear(slot)

    def zero_free_slots(self) -> None:
        """Zeroes the cache of free slots: a NaN would spoil even the attention that masks it."""
        if self.cache is not None:
            self.cache = programs.cleared(self.cache, ~self.slots.state.active_n)

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
        running, n, columns = self.running(), len(self.slots.rows), self.columns
        size = min(size for size in self.sizes if size >= len(running) + len(new))
        self.small_calls = self.small_calls + 1 if size < n else 0
        if size < n and self.small_calls < CALLS_BEFORE_SHRINKING:
            size = n
        longest = max(x.length for x in (*running, *new))
        widest = max((padded_width(x.length) for x in new), default=0)
        room = self.columns_for(max(longest + self.steps(size), widest))
        if room < columns and size == n and room > columns // 2:
            room = columns
        if (size, room) == (n, columns):
            return
        order = [slot for slot, row in enumerate(self.slots.rows) if row is not None]
        if size == n:
            order = list(range(n))
        self.slots = self.slots.moved(order, size)
        if self.cache is None:
            self.cache = programs.empty(self.policy.decoder, size, room, self.mesh)
            if self.mesh.size == 1:
                self.cache = replicated(self.mesh, self.cache)
        else:
            rows_n = np.zeros(size, np.int32)
            rows_n[: len(order)] = order
            self.cache = programs.resized(self.cache, rows_n, room, self.mesh)
        self.small_calls, self.untimed = 0, True

    def columns_for(self, tokens: int) -> int:
        """Returns the number of columns of a cache for sequences of so many tokens."""
        most = padded_width(self.policy.decoder.config.max_positions)
        return response_room(tokens - 1, most)

    def steps(self, size: int) -> int:
        """Returns the number of decode steps of the next device call."""
        seconds = self.seconds_per_step.get(size)
        if seconds is None:
            return FIRST_STEPS
        return min(math.ceil(SECONDS_PER_CALL / seconds), MOST_STEPS)

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
                cache = programs.prefill(self.policy.decoder, params, tokens_PT, lengths_P)
                self.contexts |= {context: (cache, row) for row, context in enumerate(part)}
                self.prefills += len(part)
                self.prefilled_tokens += sum(map(len, part))

    def place(self, new: Sequence[Running], contexts: Sequence[tuple[int, ...]]) -> None:
        """Puts completions in free slots, with their prefilled contexts."""
        pairs: dict[int, list[tuple[int, int]]] = {}  # slots and rows, by the cache of the rows
        caches: dict[int, Cache] = {}
        for running, context, slot in zip(new, contexts, self.slots.free(), strict=False):
            cache, row = self.contexts[context]
            caches[id(cache)] = cache
            pairs.setdefault(id(cache), []).append((slot, row))
            self.slots.put(slot, running)
        for name, prefilled in caches.items():
            slots_n, rows_n = np.zeros((2, len(self.slots.rows)), np.int32)
            count = len(pairs[name])
            slots_n[:count], rows_n[:count] = zip(*pairs[name], strict=True)
            arrays = slots_n, rows_n, np.int32(count)
            self.cache = programs.place(self.cache, prefilled, *arrays)
        self.untimed = True

    def begin(self, params: Params, *, waiting: bool) -> None:
        """Starts a device call of several decode steps, without waiting for it.

        Args:
          waiting: whether completions wait for a slot; the call then ends once some are free.
        """
        running = self.running()
        enough = len(running) - max(1, len(running) // 8) if waiting else 0
        began = time.perf_counter()
        self.cache, packed, found = programs.decode(
            self.policy.decoder,
            params,
            self.cache,
            self.slots.state,
            self.slots.constants,
            np.int32(self.steps(len(self.slots.rows))),
            np.int32(enough),
            extras=any(row.needs_extras for row in running),
        )
        self.in_flight = packed, found, began
        self.calls += 1

    def end(self) -> Ended:
        """Waits for the device call. Ended completions leave their slots.

        `Ended.drawn` must be called before `admit`, if that places the same completions again.
        """
        (packed, found, began), self.in_flight = self.in_flight, None
        outcome = Outcome.of(np.asarray(packed))
        self.time(time.perf_counter() - began, outcome.steps)
        counts, active = self.slots.advance(outcome).tolist(), outcome.active_n.tolist()
        may_be_nan = bool(np.isnan(outcome.logprobs_nM[:, : outcome.steps]).any())
        slots, spoiled = [], False
        for slot, row in enumerate(self.slots.rows):
            if row is None:
                continue
            count = counts[slot]
            nan = may_be_nan and bool(np.isnan(outcome.logprobs_nM[slot, :count]).any())
            row.drawn += count
            slots.append((slot, row, count, nan or not active[slot], nan))
            spoiled |= nan
        for slot, _, _, ended, _ in slots:
            if ended:
                self.slots.clear(slot)
        if spoiled:
            self.zero_free_slots()
        return Ended(outcome, found, slots)

    def time(self, seconds: float, steps: int) -> None:
        """Learns the seconds of a decode step; calls that first placed something are not timed.

        The estimate follows the fastest calls, since others shared the processor with clients.
        Shorter calls would only make that worse.
        """
        n = len(self.slots.rows)
        if steps and not self.untimed:
            found = seconds / steps
            self.seconds_per_step[n] = min(found, SLOWER * self.seconds_per_step.get(n, found))
        self.untimed = False


def placed(policy: Policy, params: Params) -> Params:
    """Returns parameters in sampling form with the shardings that the programs expect."""
    mesh = policy.mesh.sampling
    return replicated(mesh, params) if mesh.size == 1 else params


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
