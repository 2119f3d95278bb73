"""A short reference sampler: a static batch in one jitted program."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array, Params
from rl4p.distributed.counting import Count
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.processes import to_host
from rl4p.engine.decode import Distribution, OwnDistributions, SharedDistribution, without
from rl4p.engine.in_process import Drawn, InProcess, PublishedWeights, Stop
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy, pad_left
from rl4p.model.sampling import PROMPT, RESPONSE, penalized
from rl4p.protocols.engine import Request
from rl4p.protocols.traits import CacheSize, PlannedProgram
from rl4p.rollout.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class NaiveSampler(Sampler):
    """A sampler that decodes all sequences in one batch until the last of them has ended.

    Each sequence has its own random key, folded from the step's key and the sequence's number. Each
    token has a key folded from its sequence's key. A sequence therefore does not depend on the
    other sequences of the batch.

    To keep the code short, the prompt is prefilled once per sequence; `continuous` prefills it
    once per group.
    """

    def open(self, policy: Policy) -> "NaiveEngine":
        return NaiveEngine(policy, self.options, self.temperature_at)

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields one program, `decode`, which includes the prefill."""
        policy, mesh, params = run.policy, run.policy.sampling_mesh, run.sampling_params()
        B, W, R = run.sequences, run.prompt_columns, run.response_tokens
        B += -B % mesh.row_shards
        tokens_BT, mask_BT = (run.rows((B, W), dtype, mesh) for dtype in (jnp.int32, jnp.bool_))
        shapes = jax.eval_shape(lambda: StaticBatch.empty(B))
        sequences = jax.tree.map(lambda x: run.rows(x.shape, x.dtype, mesh), shapes)
        distribution = SharedDistribution(sampling=self.sampling, greedy=False)
        traced = generate.trace(
            *(policy.decoder, R, policy.end_ids, params, tokens_BT, mask_BT, sequences),
            distribution,
            mesh,
        )
        yield PlannedProgram(
            phase="decode",
            traced=traced,
            live=(run.resident_while_sampling(), tokens_BT, mask_BT),
            iterations=R,
            read=R * run.bytes_per_decode_step(params),
        )

    def caches(self, run: Any) -> Sequence[CacheSize]:
        """Returns the cache of all sequences, of which the loop of decoding begins with a copy."""
        columns = run.prompt_columns + run.response_tokens
        return (CacheSize(rows=run.sequences, columns=columns),) * 2

    def slots_of(self, sequences: int) -> None:
        """Returns None: all sequences are decoded at once."""


class StaticBatch(NamedTuple):
    """The constants of B sequences.

    Attributes:
      lengths_B: int32, the number of tokens in the context.
      limits_B, drawn_B: int32, `max_tokens` and `drawn` of the request.
      least_B: int32, the number of new tokens before which no end token is drawn.
      keys_B: uint32 [B, ...], the data of the random keys.
    """

    lengths_B: Array
    limits_B: Array
    drawn_B: Array
    least_B: Array
    keys_B: Array

    @staticmethod
    def empty(B: int) -> "StaticBatch":
        zeros_B, keys_B = jnp.zeros(B, jnp.int32), jax.random.split(jax.random.key(0), B)
        return StaticBatch(zeros_B, zeros_B, zeros_B, zeros_B, jax.random.key_data(keys_B))


class NaiveEngine(InProcess):
    """An engine that decodes all sequences of a call in one batch."""

    def decode(
        self,
        weights: PublishedWeights,
        requests: Sequence[Request],
        distribution: SharedDistribution | None,
        stop: Stop | None,
        greedy: bool,
        count: Count,
    ) -> list[Drawn]:
        assert stop is None
        mesh = self.policy.sampling_mesh
        counts_P = [len(request.keys_N) for request in requests]
        B = sum(counts_P)
        # The mesh divides the rows, so the last is repeated until it can.
        row_B = np.minimum(np.arange(B + -B % mesh.row_shards), B - 1)
        request_B = np.repeat(np.arange(len(requests)), counts_P)[row_B]
        own_P = [self.row_sampling(weights.version, greedy, x) for x in requests]
        numbers_P = [
            (len(x.tokens), x.max_tokens, x.drawn, max(0, own.least_tokens - x.drawn))
            for x, own in zip(requests, own_P, strict=True)
        ]
        keys_B = np.concatenate([x.keys_N for x in requests])[row_B]
        numbers_B4 = np.array(numbers_P, np.int32)[request_B]
        sequences = StaticBatch(*numbers_B4.T, keys_B=keys_B)
        own = None
        if distribution is None:
            own = mesh.shard_rows(OwnDistributions.of([own_P[p] for p in request_B]))
        prompts_PT = pad_left([x.tokens for x in requests], self.policy.pad_id)
        drawn = generate(
            self.policy.decoder,
            max(x.max_tokens for x in requests),
            self.policy.end_ids,
            weights.params,
            *mesh.shard_rows(tuple(x[request_B] for x in prompts_PT)),
            mesh.shard_rows(sequences),
            own if distribution is None else distribution,
            mesh,
        )
        tokens_BR, logprobs_BR, lengths_B = to_host(drawn)
        return [Drawn(tokens_BR[b, :n], logprobs_BR[b, :n]) for b, n in enumerate(lengths_B[:B])]


@partial(jax.jit, static_argnames=("decoder", "max_response_tokens", "end_ids", "mesh"))
def generate(
    decoder: Decoder,
    max_response_tokens: int,
    end_ids: tuple[int, ...],
    params: Params,
    prompt_tokens_BT: Array,
    prompt_mask_BT: Array,
    sequences: StaticBatch,
    distribution: Distribution,
    mesh: Mesh,
) -> tuple[Array, Array, Array]:
    """Prefills the prompts, then decodes one token of every row per step until all rows have ended.

    Returns:
      Tokens [B, R], log-probabilities [B, R] and lengths [B] of the responses. Columns beyond a
      row's length are undefined.
    """
    B, width = prompt_tokens_BT.shape
    ends, ones_B = jnp.asarray(end_ids, jnp.int32), jnp.ones(B, jnp.int32)
    prompt_segments_BT = prompt_mask_BT.astype(jnp.int32)
    prompt_positions_BT = jnp.maximum(jnp.cumsum(prompt_segments_BT, axis=1) - 1, 0)

    def choose(hidden_BD: Array, t: Array, seen_BV: Array | None) -> tuple[Any, ...]:
        logits_BV = decoder.logits(params, hidden_BD)
        if isinstance(distribution, OwnDistributions):
            early_B1 = (t < sequences.least_B)[:, None]
            logits_BV = without(logits_BV, jnp.where(early_B1, ends[None], -1))
            assert seen_BV is not None
            penalties = distribution.repetition_n, distribution.presence_n
            logits_BV = penalized(logits_BV, seen_BV, *penalties)
        keys_B = jax.random.wrap_key_data(jnp.asarray(sequences.keys_B))
        drawn = distribution.draw(
            logits_BV, ones_B, keys_B, sequences.drawn_B + t, 0, exact=decoder.exact
        )
        if seen_BV is not None:
            seen_BV = jnp.asarray(seen_BV).at[jnp.arange(B), drawn.token_B].set(RESPONSE)
        return drawn.token_B, drawn.logprob_B, seen_BV

    def ended(token_B: Array, t: Array) -> Array:
        return jnp.isin(token_B, ends) | (t + 1 == sequences.limits_B)

    def write(out: tuple[Array, ...], column: tuple[Array, ...], t: Array) -> tuple[Array, ...]:
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(buffer, value[:, None], t, axis=1)
            for buffer, value in zip(out, column, strict=True)
        )

    def decode_step(carry: tuple) -> tuple:
        t, done_B, lengths_B, token_B, cache, out, seen_BV = carry
        hidden_BTD, cache = decoder.extend(
            params,
            token_B[:, None],
            (sequences.lengths_B + t - 1)[:, None],
            ones_B[:, None],
            cache,
            width + t - 1,
            mesh,
        )
        token_B, logprob_B, seen_BV = choose(hidden_BTD[:, 0], t, seen_BV)
        out = write(out, (token_B, logprob_B), t)
        lengths_B = jnp.where(done_B, lengths_B, t + 1)
        return t + 1, done_B | ended(token_B, t), lengths_B, token_B, cache, out, seen_BV

    def unfinished(carry: tuple) -> Array:
        t, done_B, *_ = carry
        return (t < max_response_tokens) & ~jnp.all(done_B)

    hidden_BTD, cache = decoder.extend(
        params,
        prompt_tokens_BT,
        prompt_positions_BT,
        prompt_segments_BT,
        decoder.empty_cache(B, width + max_response_tokens),
        0,
        mesh,
    )
    seen_BV = None  # the tokens of each sequence so far, for penalties
    if isinstance(distribution, OwnDistributions):
        drawn_BT = prompt_positions_BT >= (sequences.lengths_B - sequences.drawn_B)[:, None]
        bits_BT = jnp.where(drawn_BT, RESPONSE, PROMPT)
        bits_BT = jnp.where(prompt_mask_BT, bits_BT, 0).astype(jnp.uint8)
        nothing_BV = jnp.zeros((B, decoder.config.vocabulary), jnp.uint8)
        seen_BV = nothing_BV.at[jnp.arange(B)[:, None], prompt_tokens_BT].max(bits_BT)
    token_B, logprob_B, seen_BV = choose(hidden_BTD[:, -1], jnp.int32(0), seen_BV)
    out = tuple(jnp.zeros((B, max_response_tokens), x.dtype) for x in (token_B, logprob_B))
    out = write(out, (token_B, logprob_B), jnp.int32(0))
    start = (jnp.int32(1), ended(token_B, jnp.int32(0)), ones_B, token_B, cache, out, seen_BV)
    _, _, lengths_B, _, _, (tokens_BR, logprobs_BR), _ = jax.lax.while_loop(
        unfinished, decode_step, start
    )
    return tokens_BR, logprobs_BR, lengths_B
