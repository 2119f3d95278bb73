"""The fast sampler: continuous batching, where waiting sequences take the slots of ended ones."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.configuration.bounds import Positive
from rl4p.distributed.collectives import gather_rows
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import with_shardings
from rl4p.distributed.processes import to_host
from rl4p.model.cache import Cache, write
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.protocols.phases import PlannedProgram
from rl4p.rollout.in_process import Batch, InProcess, Sequences
from rl4p.rollout.sampler import Sampler
from rl4p.types import Array, Params, Sampling


@dataclass(frozen=True, kw_only=True)
class Continuous(Sampler):
    """A sampler that draws the same tokens as `naive_sampler` by continuous batching.

    Each prompt is prefilled once for its group. Then compiled chunks decode one token of every slot
    per decode step. Between chunks, waiting sequences take the slots of ended sequences. Once no
    sequence waits, the number of slots is halved as sequences end. The cache grows in a few steps
    with the longest response, because attention computes over its whole size, used or not.

    Attributes:
      slots: the number of sequences decoded at a time. None decodes all sequences of a step at
        once, which is fastest if their cache fits into memory.
    """

    slots: Positive | None = None

    def open(self, policy: Policy) -> InProcess:
        return InProcess(policy, self.decode, stops=True, temperature_at=self.temperature_at)

    def decode(
        self,
        policy: Policy,
        params: Params,
        batch: Batch,
        *,
        greedy: bool,
        temperature: float | None = None,
        stop: Callable[[np.ndarray], bool] | None = None,
    ) -> tuple[Array, Array, Array]:
        count, R = len(batch.request_B), int(batch.sequences.limits_B.max())
        if stop is not None:  # later calls go on with as many sequences as happen to be unfinished
            batch, R = padded(batch), max(R, self.max_response_tokens)
        tokens_PT, mask_PT, request_B, sequences = batch
        (P, width), B = tokens_PT.shape, len(request_B)
        mesh = policy.mesh.sampling
        sizes = slot_counts(self.slots_of(B), mesh.row_shards, R)
        fill = (0, -P % mesh.row_shards), (0, 0)
        rows = (np.pad(x, fill, mode="edge") for x in (tokens_PT, mask_PT))
        prefilled = prefill(policy.decoder, params, *mesh.shard_rows(tuple(rows)), mesh)
        responses, sequences = mesh.replicate((Responses.empty(B, R), sequences))
        waiting, slots, cache, room = deque(range(count)), Slots.free(0, B), None, 0
        while waiting or (slots.sequence_n < B).any():
            if stop is not None and stop(finished(waiting, slots, B)[:count]):
                break
            slots, source_n = slots.arranged(waiting, sizes, B)
            prompt_n = request_B[np.minimum(slots.sequence_n, B - 1)]
            new_n = slots.age_n == 0  # these first read the last token of their prompt
            slots = slots._replace(token_n=np.where(new_n, tokens_PT[prompt_n, -1], slots.token_n))
            room = max(room, response_room(int(slots.age_n.max()), R))
            cache = rearranged(cache, prefilled, source_n, prompt_n, new_n, width + room, mesh)
            if mesh.size > 1:
                slots = mesh.shard_rows(slots)
            n = len(new_n)  # a chunk ends once at most `enough` sequences go on
            enough = n - max(1, n // 8) if waiting else max((m for m in sizes if m < n), default=0)
            slots, cache, responses = decode(
                policy.decoder,
                self.sampling,
                policy.end_ids,
                width,
                params,
                sequences,
                slots,
                cache,
                responses,
                greedy or self.temperature == 0,
                enough,
                R if stop is None else BETWEEN_STOPS,
                temperature,
            )
            slots = to_host(slots)
        if count == B:
            return responses
        return Responses(*(x[:count] for x in to_host(responses)))  # a slice compiles on a device

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields `prefill`, `arrange` and `decode`, with the largest cache that may occur."""
        policy, mesh, params = run.policy, run.mesh.sampling, run.sampling_params()
        P, W, B, R = run.prompts, run.prompt_columns, run.sequences, run.response_tokens
        resident = run.resident_while_sampling()
        rows = P + -P % mesh.row_shards
        tokens_PT, mask_PT = (run.rows((rows, W), dtype, mesh) for dtype in (jnp.int32, jnp.bool_))
        traced = prefill.trace(policy.decoder, params, tokens_PT, mask_PT, mesh)
        prefilled = yield PlannedProgram(phase="prefill", traced=traced, live=resident)
        if prefilled is None:  # the other programs need it
            return

        n = slot_counts(self.slots_of(B), mesh.row_shards, R)[0]
        of_slots: Any = jax.ShapeDtypeStruct((n,), jnp.int32)
        new_n = jax.ShapeDtypeStruct((n,), jnp.bool_)
        cache = jax.eval_shape(lambda cache, rows: cache.rows(rows, W + R), prefilled, of_slots)
        cache = with_shardings(cache, of_cache(cache, mesh))
        traced = rearranged.trace(cache, prefilled, of_slots, of_slots, new_n, W + R, mesh)
        live = (resident, prefilled, cache)
        yield PlannedProgram(phase="arrange", traced=traced, live=live)

        slots = Slots(of_slots, of_slots, of_slots)
        if mesh.size > 1:
            slots = jax.tree.map(lambda x: run.rows(x.shape, x.dtype, mesh), slots)
        else:
            slots = run.replicated(slots, mesh)
        responses = run.replicated(jax.eval_shape(lambda: Responses.empty(B, R)), mesh)
        sequences = run.replicated(Sequences.shapes(B), mesh)
        traced = decode.trace(
            policy.decoder,
            self.sampling,
            policy.end_ids,
            W,
            params,
            sequences,
            slots,
            cache,
            responses,
            False,
            0,
            R,
        )
        iterations = R * -(-B // n)
        # A step reads the written part of the cache: on average, half of the response columns.
        written = (W + R / 2) / (W + R)
        weights = run.bytes_per_decode_step(params)
        caches = run.bytes_of(cache.layers)
        yield PlannedProgram(
            phase="decode",
            traced=traced,
            live=(live, slots, responses),
            iterations=iterations,
            read=iterations * (weights + caches * written),
        )

    def slots_of(self, sequences: int) -> int:
        """Returns how many of a step's sequences are decoded at a time."""
        return min(self.slots or sequences, sequences)


class Slots(NamedTuple):
    """The sequences that are decoded together, one per slot.

    Attributes:
      sequence_n: the index of the slot's sequence among B; B if the slot is free.
      token_n: the newest token of the sequence.
      age_n: the number of tokens in its response.
    """

    sequence_n: Array
    token_n: Array
    age_n: Array

    @staticmethod
    def free(n: int, B: int) -> "Slots":
        return Slots(np.full(n, B, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int32))

    def arranged(
        self, waiting: deque[int], sizes: Sequence[int], B: int
    ) -> tuple["Slots", np.ndarray]:
        """Moves unfinished sequences to the front, and fills free slots with waiting sequences.

        Returns:
          The fewest slots of `sizes` that suffice, and the former slot of each; 0 for a new one.
        """
        going = np.flatnonzero(self.sequence_n < B)
        wanted = min(len(going) + len(waiting), sizes[0])
        n = min(size for size in sizes if size >= wanted)
        new = [waiting.popleft() for _ in range(min(n - len(going), len(waiting)))]
        slots, end = Slots.free(n, B), len(going) + len(new)
        for array, former in zip(slots, self, strict=True):
            array[: len(going)] = former[going]
        slots.sequence_n[len(going) : end] = new
        return slots, np.pad(going, (0, n - len(going)))


class Responses(NamedTuple):
    """The responses so far; `lengths_B` is the number of columns written in each row."""

    tokens_BR: Array
    logprobs_BR: Array
    lengths_B: Array

    @staticmethod
    def empty(B: int, R: int) -> "Responses":
        return Responses(
            tokens_BR=np.zeros((B, R), np.int32),
            logprobs_BR=np.zeros((B, R), np.float32),
            lengths_B=np.zeros(B, np.int32),
        )

    def take(self, sequence_n: Array) -> "Responses":
        """Returns the rows of the given sequences; the row of a free slot is arbitrary."""
        return Responses(*(jnp.take(x, sequence_n, axis=0, mode="clip") for x in self))

    def put(self, sequence_n: Array, part: "Responses") -> "Responses":
        """Returns a copy with the rows of `sequence_n` replaced by `part`, except those at B."""
        B, n = self.lengths_B.shape[0], part.lengths_B.shape[0]
        # A CPU gathers whole rows but scatters single elements, so only indices are scattered.
        slot_B = jnp.full(B, n).at[sequence_n].set(jnp.arange(n), mode="drop")

        def chosen(x: Array, new: Array) -> Array:
            has_B = (slot_B < n).reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.where(has_B, jnp.take(new, slot_B, axis=0, mode="clip"), x)

        return Responses(*map(chosen, self, part))


def finished(waiting: deque[int], slots: Slots, B: int) -> np.ndarray:
    """Returns which sequences neither wait nor have a slot: bool [B]."""
    finished_B = np.ones(B, bool)
    finished_B[list(waiting)] = False
    finished_B[slots.sequence_n[slots.sequence_n < B]] = False
    return finished_B


def padded(batch: Batch) -> Batch:
    """Returns a batch whose numbers of requests and of sequences are powers of two.

    Its last request and its last sequence are repeated. Few sizes need few compilations.
    """

    def rows(count: int) -> np.ndarray:
        return np.minimum(np.arange(1 << (count - 1).bit_length()), count - 1)

    row_P, row_B = rows(len(batch.tokens_PT)), rows(len(batch.request_B))
    return Batch(
        tokens_PT=batch.tokens_PT[row_P],
        mask_PT=batch.mask_PT[row_P],
        request_B=batch.request_B[row_B],
        sequences=Sequences(*(x[row_B] for x in batch.sequences)),
    )


BETWEEN_STOPS = 32  # tokens; a decode that may be stopped asks so often whether it is

# Each slot count and each cache size compiles once, which only long responses are worth.


def slot_counts(most: int, devices: int, R: int) -> tuple[int, ...]:
    """Returns falling slot counts: `most` rounded up to the devices, then up to R // 32 halves."""
    counts = [-(-most // devices) * devices]
    for _ in range(R // 32):
        half, odd = divmod(counts[-1], 2)
        if odd or half < 8 or half % devices:
            break
        counts.append(half)
    return tuple(counts)


def response_room(oldest: int, R: int) -> int:
    """Returns the cache slots for responses: the first of 64, 96, 128, 192, ... over `oldest`.

    A high limit R costs nothing unless a response comes near it.
    """
    places = 64
    while places <= oldest:
        places = places * 3 // 2 if places.bit_count() == 1 else places * 4 // 3
    return min(R, places)


@partial(jax.jit, static_argnames=("decoder", "mesh"))
def prefill(
    decoder: Decoder, params: Params, tokens_PT: Array, mask_PT: Array, mesh: Mesh
) -> Cache:
    """Returns the cache of the prompts, with rows replicated so that any slot can read them."""
    segments_PT = mask_PT.astype(jnp.int32)
    positions_PT = jnp.maximum(jnp.cumsum(segments_PT, axis=1) - 1, 0)
    empty = decoder.empty_cache(*tokens_PT.shape)
    inputs = tokens_PT, positions_PT, segments_PT
    return gather_rows(mesh, decoder.extend(params, *inputs, empty, 0)[1])


def of_cache(cache: Cache, mesh: Mesh) -> Any:
    """Returns the shardings of a cache: rows over `dp` and `fsdp`, KV heads over `tp`."""
    place: Any = Cache  # typed Any, since the fields here are shardings and not arrays
    return place(
        layers=jax.tree.map(lambda _: mesh.rows_and_heads, cache.layers),
        positions_BS=mesh.rows,
        segment_ids_BS=mesh.rows,
    )


@partial(jax.jit, static_argnames=("places", "mesh"))
def rearranged(
    cache: Cache | None,
    prefilled: Cache,
    source_n: Array,
    prompt_n: Array,
    new_n: Array,
    places: int,
    mesh: Mesh,
) -> Cache:
    """Returns the cache in the new order of slots; that of a new slot holds its prompt."""
    fresh = prefilled.rows(prompt_n, places)

    def choose(new: Array, old: Array) -> jax.Array:
        return jnp.where(new_n.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    if cache is not None:
        fresh = jax.tree.map(choose, fresh, cache.rows(source_n, places))
    if mesh.size == 1:
        return fresh
    return jax.lax.with_sharding_constraint(fresh, of_cache(fresh, mesh))


@partial(
    jax.jit,
    static_argnames=("decoder", "sampling", "end_ids", "width"),
    donate_argnames=("cache", "responses"),
)
def decode(
    decoder: Decoder,
    sampling: Sampling,
    end_ids: tuple[int, ...],
    width: int,
    params: Params,
    sequences: Sequences,
    slots: Slots,
    cache: Cache,
    responses: Responses,
    greedy: Array,
    enough: Array,
    most: Array,
    temperature: Array | None = None,
) -> tuple[Slots, Cache, Responses]:
    """Decodes until at most `enough` sequences go on, or one has filled its cache.

    Args:
      most: the most tokens that this call adds to a sequence.
      temperature: in place of that of `sampling`.
    """
    B, R = responses.tokens_BR.shape
    began_n, spoken = slots.sequence_n, responses.take(slots.sequence_n)
    room = cache.positions_BS.shape[1] - width
    mine, most_n = sequences.take(slots.sequence_n), jnp.minimum(slots.age_n + most, room)
    ones_n1 = jnp.ones((len(slots.token_n), 1), jnp.int32)

    def decode_step(carry: tuple) -> tuple:
        (sequence_n, token_n, age_n), cache, said = carry
        hidden_n1D, cache = decoder.extend(
            params,
            token_n[:, None],
            (mine.lengths_B + age_n - 1)[:, None],
            ones_n1,
            cache,
            width + age_n - 1,
        )
        logits_nV = decoder.logits(params, hidden_n1D[:, 0])
        token_n, logprob_n = mine.draw(logits_nV, sampling, age_n, greedy, temperature)
        column_n = jnp.where(sequence_n < B, age_n, R)
        said = tuple(
            write(x, new[:, None], column_n, axis=1)
            for x, new in zip(said, (token_n, logprob_n), strict=True)
        )
        age_n = jnp.where(sequence_n < B, age_n + 1, age_n)
        ended_n = jnp.isin(token_n, jnp.asarray(end_ids, jnp.int32)) | (age_n == mine.limits_B)
        return Slots(jnp.where(ended_n, B, sequence_n), token_n, age_n), cache, said

    def worth(carry: tuple) -> Array:
        # A single sum, since it synchronizes devices; it is below 0 if a sequence must not go on.
        going_n, n = carry[0].sequence_n < B, len(carry[0].sequence_n)
        return jnp.sum(jnp.where(going_n, jnp.where(carry[0].age_n < most_n, 1, -n), 0)) > enough

    # New tokens stay with the slots until the end of the chunk (free slots write to an extra
    # column): a slot and its row of `responses` may be on different devices.
    said = tuple(jnp.pad(x, ((0, 0), (0, 1))) for x in (spoken.tokens_BR, spoken.logprobs_BR))
    slots, cache, said = jax.lax.while_loop(worth, decode_step, (slots, cache, said))
    tokens_nR, logprobs_nR = (x[:, :R] for x in said)
    spoken = Responses(tokens_nR, logprobs_nR, slots.age_n)
    return slots, cache, responses.put(began_n, spoken)
