"""The sequences that are decoded together.

Each has one of n slots, which is a row of the cache. Shards of devices divide the rows:

    slot       0    1    2    3  |  4    5    6    7         two shards
    sequence   a    b    -    c  |  d    -    -    -         a dash is a free slot
    row        padding, context, drawn tokens, free columns

A device call decodes a few tokens of every slot (`begin`, `end`). Between two calls, ended
sequences leave their slots, and new ones come (`admit`): `fit` chooses how many slots and columns
the cache has, `slots_for` takes free slots, `prefill` runs the contexts that no cache has yet, and
`place` copies their rows into the slots. If a layout `shares`, contexts stay apart (`prompts.py`),
and the columns of a slot begin with the last token of its context.

The traps: Each shape of an array compiles a program, so sizes, widths and columns are of a few
(`Layout`), and the cache is not shrunk at once. A row stays on its shard (except on a CPU), so a
context is run once for each shard that needs it, and `contexts` knows it by shard; one that
continues a kept cache is on all shards (`EVERY`). A kept cache lacks its last token, which was
drawn but never read.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rl4p.base.types import Params
from rl4p.distributed.mesh import Mesh
from rl4p.engine import cache as programs
from rl4p.engine.decode import Distribution, Outcome, decode
from rl4p.engine.layout import Layout
from rl4p.engine.prompts import EVERY, Contexts, Prompts, copied
from rl4p.engine.sequence import Ended, Slots, TokenSequence
from rl4p.engine.speculation import Speculation, speculate
from rl4p.model.cache import Cache
from rl4p.model.policy import Policy

Kept = dict[tuple[int, ...], tuple[Cache, int]]  # by tokens: a row, and the padding in it


class Batch:
    """The sequences that are decoded together.

    `begin` starts a device call, and `end` waits for its tokens; the caller has time for other
    things in between. All other methods are called after `end` and before `begin`.

    Args:
      kept: the caches of ended sequences, which contexts may begin with. They lack the last token.
      speculation: chooses when to draft tokens; None for never.
    """

    def __init__(
        self,
        policy: Policy,
        layout: Layout,
        kept: Kept | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.decoder, self.pad_id = policy.decoder, policy.pad_id
        self.mesh, self.layout = policy.sampling_mesh, layout
        self.kept: Kept = {} if kept is None else kept
        self.speculation = speculation
        self.prefills = self.prefilled_tokens = self.calls = 0
        self.clear()

    def clear(self) -> None:
        """Removes all sequences and releases the cache."""
        self.cache: Any = None  # a Cache, once there is something to decode
        self.slots, self.columns = Slots(0), 0
        self.contexts: Contexts = {}
        self.prompts: Prompts | None = None
        self.shared: Any = None  # `PromptCache` of the slots, if they have not changed since
        if self.layout.shares:
            begin, rows = self.layout.begin, self.layout.prefill_rows
            self.prompts = Prompts(rows, begin, self.mesh)
        self.in_flight: Any = None
        self.small_calls, self.untimed = 0, True

    @property
    def apart(self) -> int:
        """The number of columns that are not in the cache, because slots share them."""
        return self.layout.begin if self.layout.shares else 0

    @property
    def size(self) -> int:
        return len(self.slots.sequences)

    def counts(self) -> dict[str, float]:
        return {
            "device_calls": float(self.calls),
            "prefilled_prompts": float(self.prefills),
            "prefilled_tokens": float(self.prefilled_tokens),
            "cache_columns": float(self.columns),
        }

    def remove(self, sequences: Sequence[TokenSequence]) -> None:
        leaving = set(map(id, sequences))
        if self.speculation is not None:
            self.speculation.ended += sequences
        for slot, sequence in enumerate(self.slots.sequences):
            if sequence is not None and id(sequence) in leaving:
                self.record(slot, sequence)
                self.slots.clear(slot)

    def record(self, slot: int, sequence: TokenSequence) -> None:
        """Keeps the recorded experts of a sequence that leaves its slot."""
        if self.decoder.records:
            row = self.row_of(slot, sequence, slice(-1, None))
            padding = self.layout.padding(sequence.context)
            sequence.record = row.layers[0].chosen_BSX, padding

    def admit(self, params: Params, new: Sequence[TokenSequence], *, keep: bool) -> None:
        """Prefills the contexts of sequences, each once, and places them in free slots.

        It makes room for the next device call, and is therefore called before each.

        Args:
          new: at most as many sequences as there are free slots.
          keep: whether the prefilled contexts may be needed again.
        """
        running = self.slots.running()
        if len({*running, *new}) < len(running) + len(new):
            raise ValueError("A sequence has a slot, and may not take a second one.")
        self.fit(new)
        if new:
            contexts = [tuple(x.tokens) for x in new]
            # A free slot for each, in a shard that has the context if there is one.
            free = {slot: self.shard(slot) for slot in self.slots.free()}
            having = {context: {*self.contexts.get(context, ())} for context in contexts}
            slots = []
            for context in contexts:
                shards, chosen = having[context], next(iter(free))
                if self.mesh.row_shards > 1 and EVERY not in shards:
                    near = (slot for slot, shard in free.items() if shard in shards)
                    chosen = next(near, chosen)
                shards.add(free.pop(chosen))
                slots.append(chosen)
            self.prefill(params, contexts, [self.shard(slot) for slot in slots])
            self.place(new, slots)
        if self.prompts is not None and self.shared is None:
            sequences = self.slots.sequences
            self.prompts.update(sequences, self.contexts, keep=keep)
            self.shared = self.prompts.shared(sequences)
        if not keep:
            self.contexts.clear()

    def forget(self, context: Sequence[int]) -> None:
        """Releases the kept cache that a context continues, once the context has a slot."""
        for length in sorted(set(map(len, self.kept)), reverse=True):
            if self.kept.pop(tuple(context[:length]), None) is not None:
                self.contexts.pop(tuple(context), None)
                break

    def fit(self, new: Sequence[TokenSequence]) -> None:
        """Makes room for new sequences and at least one more token of each."""
        layout, running = self.layout, self.slots.running()
        n, shards = self.size, self.mesh.row_shards
        by_shard, enough = self.slots.by_shard(shards), len(running) + len(new)
        # Sequences stay on their devices, except on a CPU, whose devices share one memory.
        stay = max(enough, max(map(len, by_shard)) * shards)
        size, unmoved = (min(x for x in layout.sizes if x >= least) for least in (enough, stay))
        moves = size < unmoved and self.mesh.platform == "cpu"
        size = size if moves else unmoved
        self.small_calls = self.small_calls + 1 if size < n else 0
        if size < n and self.small_calls < layout.patience:
            size = n
        drafted = 0 if self.speculation is None else self.speculation.most
        used = max(layout.padding(x.context) + x.length for x in (*running, *new)) + 1 + drafted
        widest = max((layout.width(x.tokens) for x in new), default=0)
        columns = layout.columns(max(used, widest))
        shrinks = layout.shrinks and (size != n or columns <= self.columns // 2)
        if columns < self.columns and not shrinks:
            columns = self.columns
        if (size, columns) == (n, self.columns):
            return
        if moves:
            by_shard = np.array_split([slot for slots in by_shard for slot in slots], shards)
        old_n = np.full((shards, size // shards), -1)
        for shard, slots in enumerate(by_shard):
            old_n[shard, : len(slots)] = slots
        if self.cache is not None:
            first = 0 if moves else np.arange(shards)[:, None] * (n // shards)
            row_n = np.where(old_n >= 0, old_n - first, 0).astype(np.int32).ravel()
            own = columns - self.apart
            self.cache = programs.resized(self.cache, row_n, own, self.mesh, moves)
        self.slots, self.columns = self.slots.rearranged(old_n.ravel().tolist()), columns
        self.small_calls, self.untimed, self.shared = 0, True, None

    def shard(self, slot: int) -> int:
        return slot * self.mesh.row_shards // self.size

    def prefill(
        self, params: Params, contexts: Sequence[tuple[int, ...]], shards: Sequence[int]
    ) -> None:
        """Computes the caches that `contexts` lacks, each on its shard, equal widths together."""
        layout, count = self.layout, self.mesh.row_shards
        by_width: dict[int, list[list[tuple[int, ...]]]] = {}
        kept_rows: dict[tuple[int, int], dict[tuple[int, ...], int]] = {}
        lengths = sorted(set(map(len, self.kept)), reverse=True)
        for context, shard in dict.fromkeys(zip(contexts, shards, strict=True)):
            if {shard, EVERY} & self.contexts.get(context, {}).keys():
                continue
            begin = next((n for n in lengths if context[:n] in self.kept), None)
            if begin is None:
                lists = by_width.setdefault(layout.width(context), [[] for _ in range(count)])
                lists[shard].append(context)
            else:
                columns = self.kept[context[:begin]][0].positions_BS.shape[1]
                width = layout.few_widths(len(context) - begin + 1)
                kept_rows.setdefault((columns, width), {})[context] = begin
        for (_, width), begins in sorted(kept_rows.items()):
            pairs = list(begins.items())
            while pairs:
                P = layout.rows(width, len(pairs))
                part, pairs = pairs[:P], pairs[P:]
                self.prefill_rest(params, part, P, width)
        for width, lists in sorted(by_width.items()):
            while waiting := max(map(len, lists)):
                P = layout.rows(width, waiting * count)
                each = -(-P // count)
                tokens_PT = np.full((each * count, width), self.pad_id, np.int32)
                padding_P, lengths_P = (np.full(each * count, n, np.int32) for n in (0, 1))
                part = [
                    (shard, each * shard + i, context)
                    for shard, several in enumerate(lists)
                    for i, context in enumerate(several[:each])
                ]
                lists = [several[each:] for several in lists]
                for _, row, context in part:
                    begin, length = layout.padding(context), len(context)
                    tokens_PT[row, begin : begin + length] = context
                    # Without the last token, which the first decode step reads.
                    padding_P[row], lengths_P[row] = begin, length - 1
                arrays: Any = tokens_PT, padding_P, lengths_P
                if self.mesh.size > 1:
                    arrays = self.mesh.shard_rows(arrays)
                prefilled = programs.prefill(self.decoder, params, *arrays, self.mesh)
                for shard, row, context in part:
                    self.contexts.setdefault(context, {})[shard] = prefilled, row % each
                    self.prefilled_tokens += len(context)
                self.prefills += len(part)

    def prefill_rest(
        self, params: Params, pairs: Sequence[tuple[tuple[int, ...], int]], P: int, width: int
    ) -> None:
        """Computes the caches of contexts that begin with the tokens of kept caches.

        Args:
          pairs: at most P contexts, and how many tokens at the beginning of each are kept.
          width: the number of columns for the other tokens.
        """
        layout = self.layout
        tokens_PT, numbers_4P = np.zeros((P, width), np.int32), np.zeros((4, P), np.int32)
        rows = []
        for p, (context, begin) in enumerate(pairs):
            (row, former), padding = self.kept[context[:begin]], layout.padding(context)
            start = begin - 1  # the last of the kept tokens was drawn, and not read
            rest = context[start:]
            tokens_PT[p, : len(rest)] = rest
            numbers_4P[:, p] = padding - former, padding + start, start, len(rest) - 1
            rows.append(row)
            self.prefills += 1
            self.prefilled_tokens += len(rest)
        rows += rows[:1] * (P - len(rows))
        shift_P, column_P, position_P, length_P = numbers_4P
        arrays = rows, shift_P, tokens_PT, column_P, position_P, length_P
        columns = layout.begin or self.columns
        prefilled = programs.continued(self.decoder, params, *arrays, columns, self.mesh)
        for p, (context, _) in enumerate(pairs):
            self.contexts.setdefault(context, {})[EVERY] = prefilled, p

    def place(self, new: Sequence[TokenSequence], slots: Sequence[int]) -> None:
        """Puts sequences in free slots, with their prefilled contexts."""
        # The last token of a context is read by the first decode step, so a slot has its column.
        before = max(0, self.apart - 1)
        placed = []
        for sequence, slot in zip(new, slots, strict=True):
            placed.append((slot, self.shard(slot), tuple(sequence.tokens)))
            self.slots.put(slot, sequence, self.layout.padding(sequence.context) - before)
        options = self.size, self.columns - self.apart, self.mesh
        self.cache = copied(self.cache, placed, self.contexts, *options, states=self.layout.shares)
        self.untimed, self.shared = True, None

    def begin(
        self, params: Params, *, steps: int, waiting: bool, distribution: Distribution | None = None
    ) -> None:
        """Starts a device call of several decode steps, without waiting for it.

        Args:
          steps: the most decode steps, at most `MOST_STEPS`.
          waiting: whether sequences wait for a slot; the call then ends once some are free.
          distribution: the distribution of all sequences; None takes their own.
        """
        running, slots, enough = self.slots.running(), self.slots, 0
        if waiting:
            enough = len(running) - max(1, len(running) // 8)
        elif self.layout.patience == 1:  # it ends once fewer slots will do
            fewer = min(self.size, len(running))
            enough = max((size for size in self.layout.sizes if size < fewer), default=0)
        began = time.perf_counter()
        arrays = slots.state, slots.constants
        own = slots.distributions if distribution is None else None
        seen_nV: Any = slots.seen(self.decoder.config.vocabulary)
        extras = any(x.needs_extras for x in running)
        k, texts = 0, None
        if self.speculation is not None:
            allowed = seen_nV is None and not extras
            k, texts, most = self.speculation.choose(slots.sequences, allowed=allowed)
            steps = min(steps, most)
        if self.mesh.size > 1:
            arrays, own, seen_nV, texts = self.mesh.shard_rows((arrays, own, seen_nV, texts))
        arrays = *arrays, own if distribution is None else distribution
        if texts is None:
            numbers = np.int32(steps), np.int32(enough), seen_nV, self.shared
            self.cache, packed, drawn = decode(
                *(self.decoder, params, self.cache, *arrays, *numbers),
                extras=extras,
                mesh=self.mesh,
            )
            steps_nT = None
        else:
            numbers = np.int32(steps), np.int32(enough), self.shared
            self.cache, (packed, drawn, steps_nT) = speculate(
                *(self.decoder, params, self.cache, *arrays, texts, *numbers), k=k, mesh=self.mesh
            )
        self.in_flight = packed, drawn, steps_nT, began
        self.calls += 1

    def end(self) -> Ended:
        """Waits for the device call. Ended sequences leave their slots.

        `Ended.chunks` must be called before `admit`, if that places the same sequences again.
        """
        (packed, drawn, steps_nT, began), self.in_flight = self.in_flight, None
        outcome = Outcome.of(packed)
        seconds = math.nan if self.untimed else time.perf_counter() - began
        counts, active = self.slots.advance(outcome).tolist(), outcome.active_n.tolist()
        slots = [
            (slot, sequence, counts[slot], active[slot])
            for slot, sequence in enumerate(self.slots.sequences)
            if sequence is not None
        ]
        if self.speculation is not None:
            self.speculation.add(outcome.steps, steps_nT, [slot[1:] for slot in slots])
        for slot, sequence, count, goes_on in slots:
            sequence.drawn += count
            if sequence.penalizes:
                sequence.new += outcome.tokens_nM[slot, :count].tolist()
            if not goes_on:
                self.record(slot, sequence)
                self.slots.clear(slot)
            if not goes_on and sequence.keep:
                sequence.kept = self.row_of(slot, sequence, slice(None))
        self.untimed = False
        return Ended(outcome, drawn, slots, self.size, seconds)

    def row_of(self, slot: int, sequence: TokenSequence, of: slice) -> Cache:
        """Returns a row with the caches of a sequence, its context included.

        Args:
          of: the layers.
        """

        def part(cache: Cache) -> Cache:
            return replace(cache, layers=cache.layers[of])

        if self.prompts is None:
            return programs.row_of(part(self.cache), np.int32(slot), self.columns, self.mesh)
        rows = np.int32(self.prompts.row(slot, sequence)), np.int32(slot)
        prompts = part(self.prompts.cache)
        return programs.whole_row(prompts, part(self.cache), *rows, self.mesh)


def placed(policy: Policy, params: Params) -> Params:
    """Returns parameters in sampling form with the shardings that the programs expect.

    Those of a single device must not name a mesh: the compiler then gives the same array another
    name in the results of each program, and a program compiles once more for each name.
    """
    mesh: Mesh = policy.sampling_mesh
    return params if mesh.size > 1 else jax.device_put(params, mesh.devices.devices.flat[0])
