"""The prompts of the slots: each has one row of a cache of its own, for all slots that continue it.

    slot       0    1    2    3  |  4    5    6    7         two shards
    sequence   a1   a2   b1   -  |  b2   b3   -    c1
    prompt     a    b            |  b    c                   a row for each on each shard

Slots may be taken and freed in any order: arrays of indices say which slots continue a prompt. A
row is free again once no slot of its shard has its prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.engine import cache as programs
from rl4p.engine.sequence import TokenSequence
from rl4p.model.cache import Cache, NoCache
from rl4p.model.prompt_cache import PromptCache

EVERY = -1  # the shard of a cache whose rows are on all devices

Context = tuple[int, ...]
Contexts = dict[Context, dict[int, tuple[Cache, int]]]  # by shard: a cache, and a row of that shard


class Prompts:
    """The cache of the prompts of slots.

    Args:
      most: the largest number of prompts.
      columns: the number of columns of a prompt.

    Attributes:
      rows: for each shard, the prompt in each row; None in a row that never had one.
    """

    def __init__(self, most: int, columns: int, mesh: Mesh) -> None:
        self.sizes, self.columns, self.mesh = [most], columns, mesh
        while self.sizes[-1] > 1:
            self.sizes.append(-(-self.sizes[-1] // 2))
        self.cache: Any = None
        self.rows: list[list[Context | None]] = []
        self.slots = self.places = 0  # for how many slots, and the most that continue a prompt
        self.contexts: dict[TokenSequence, Context] = {}

    def update(
        self, sequences: Sequence[TokenSequence | None], contexts: Contexts, *, keep: bool
    ) -> None:
        """Gives each prompt of the slots a row.

        Args:
          sequences: the sequence in each slot.
          contexts: the caches of prompts that have no row.
          keep: whether these caches are needed again.
        """
        known, shards = self.contexts, self.mesh.row_shards
        running = [x for x in sequences if x is not None]
        self.contexts = {x: known.get(x) or tuple(x.context) for x in running}
        each = len(sequences) // shards
        parts = [sequences[i * each : (i + 1) * each] for i in range(shards)]
        wanted = [dict.fromkeys(self.contexts[x] for x in part if x is not None) for part in parts]
        size = min(x for x in self.sizes if x >= max(map(len, wanted)))
        if self.cache is None:
            self.rows = [[None] * size for _ in range(shards)]
        elif size > len(self.rows[0]) or self.slots != len(sequences):
            self.rearrange(wanted, size)
        if self.slots != len(sequences):
            self.slots, self.places = len(sequences), 0
        placed = []
        for shard, prompts in enumerate(wanted):
            rows = self.rows[shard]
            free = [row for row, context in enumerate(rows) if context not in prompts]
            for context in (x for x in prompts if x not in rows):
                row = free.pop(0)
                rows[row] = context
                placed.append((shard * len(rows) + row, shard, context))
        if placed:
            self.place(placed, contexts, keep=keep)

    def rearrange(self, wanted: Sequence[Iterable[Context]], size: int) -> None:
        """Changes the number of rows, or the shards of prompts whose slots have moved."""
        moves = self.mesh.platform == "cpu" and self.mesh.row_shards > 1
        before, old = len(self.rows[0]), []
        rows: list[list[Context | None]] = []
        for shard, prompts in enumerate(wanted):
            near = [shard, *(range(len(self.rows)) if moves else ())]
            at = {
                context: self.rows[i].index(context) + (i * before if moves else 0)
                for context in prompts
                for i in near[::-1]
                if context in self.rows[i]
            }
            rows.append([*at, *[None] * (size - len(at))])
            old += [*at.values(), *[0] * (size - len(at))]
        if size == before and rows == self.rows:
            return
        row_n = np.array(old, np.int32)
        self.rows = rows
        self.cache = programs.resized(self.cache, row_n, self.columns, self.mesh, moves)

    def place(
        self, placed: Sequence[tuple[int, int, Context]], contexts: Contexts, *, keep: bool
    ) -> None:
        """Copies prompts to their rows: the row, its shard, and the prompt of each."""
        size, each = sum(map(len, self.rows)), len(self.rows[0])
        source, _ = next(iter(contexts[placed[0][2]].values()))
        found = ((contexts[context].get(shard), row % each) for row, shard, context in placed)
        same = all(at is not None and at[0] is source and at[1] == row for at, row in found)
        if self.cache is None and same and not keep and len(source.positions_BS) == size:
            self.cache = without_states(source)  # as it is, which takes no memory
            return
        options = size, self.columns, self.mesh
        self.cache = copied(self.cache, placed, contexts, *options, of=without_states)

    def row(self, slot: int, sequence: TokenSequence) -> int:
        """Returns the row of a slot's prompt."""
        shard = slot * len(self.rows) // self.slots
        rows = self.rows[shard]
        return shard * len(rows) + rows.index(self.contexts[sequence])

    def shared(self, sequences: Sequence[TokenSequence | None]) -> PromptCache:
        """Returns what a device call reads: the cache, and who continues which prompt."""
        each, size = self.slots // len(self.rows), len(self.rows[0])
        following: list[list[int]] = [[] for _ in range(size * len(self.rows))]
        for slot, sequence in enumerate(sequences):
            if sequence is not None:
                following[self.row(slot, sequence)].append(slot)
        self.places = max(self.places, few(max(map(len, following))))
        row_PM = np.zeros((len(following), self.places), np.int32)
        place_B = np.zeros(self.slots, np.int32)
        for row, slots in enumerate(following):
            for i, slot in enumerate(slots):
                row_PM[row, i] = slot % each
                place_B[slot] = row % size * self.places + i
        arrays: Any = row_PM, place_B
        if self.mesh.size > 1:
            arrays = self.mesh.shard_rows(arrays)
        return PromptCache(self.cache, *arrays)


def few(count: int) -> int:
    """Returns the first of 1, 2, 3, 4, 6, 8, 12, ... from `count` on: each compiles."""
    size = 1 << (count - 1).bit_length()
    return size * 3 // 4 if size > 2 and count <= size * 3 // 4 else size


def without_states(cache: Cache) -> Cache:
    """Returns a cache without the layers that have no slots."""
    layers = cache.layers
    return replace(cache, layers=tuple(x if {*x.slot_axes} - {None} else NoCache() for x in layers))


def copied(
    cache: Cache | None,
    placed: Iterable[tuple[int, int, Context]],
    contexts: Contexts,
    size: int,
    columns: int,
    mesh: Mesh,
    *,
    of: Any = lambda cache: cache,
    states: bool = False,
) -> Any:
    """Returns a cache with copies of contexts, which replaces the given one.

    Args:
      placed: the row, its shard, and the context of each copy.
      size, columns: of the cache.
      of: returns the part of a cache that is copied.
      states: as in `cache.place`.
    """
    rows: dict[int, np.ndarray] = {}  # the row for each slot, by the cache that has the row
    caches: dict[int, tuple[Cache, bool]] = {}
    for row, shard, context in placed:
        by_shard = contexts[context]
        prefilled, source = by_shard.get(shard) or by_shard[EVERY]
        caches[id(prefilled)] = prefilled, shard not in by_shard
        rows.setdefault(id(prefilled), np.full(size, -1, np.int32))[row] = source
    for name, (prefilled, everywhere) in caches.items():
        row_n: Any = rows[name]
        if mesh.size > 1:
            row_n = mesh.shard_rows(row_n)
        arrays = cache, of(prefilled), row_n
        cache = programs.place(*arrays, columns, mesh, everywhere, states)
    return cache
