"""A short reference sampler: a static batch in one jitted program."""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.protocols.phases import PlannedProgram
from rl4p.rollout.in_process import Batch, Sequences
from rl4p.rollout.sampler import Sampler
from rl4p.types import Array, Params, Sampling


@dataclass(frozen=True, kw_only=True)
class NaiveSampler(Sampler):
    """A sampler that decodes all sequences in one batch until the last of them has ended.

    Each sequence has its own random key, folded from the step's key and the sequence's number. Each
    token has a key folded from its sequence's key. A sequence therefore does not depend on the
    other sequences of the batch.

    To keep the code short, the prompt is prefilled once per sequence; `continuous` prefills it
    once per group.
    """

    def decode(
        self,
        policy: Policy,
        params: Params,
        batch: Batch,
        *,
        greedy: bool,
        temperature: float | None = None,
    ) -> tuple[Array, Array, Array]:
        mesh, B = policy.mesh.sampling, len(batch.request_B)
        # The mesh divides the rows, so the last is repeated until it can.
        row_B = np.minimum(np.arange(B + -B % mesh.row_shards), B - 1)
        request_B = batch.request_B[row_B]
        sequences = Sequences(*(x[row_B] for x in batch.sequences))
        tokens_BT, mask_BT = (x[request_B] for x in (batch.tokens_PT, batch.mask_PT))
        found = generate(
            policy.decoder,
            self.sampling,
            int(batch.sequences.limits_B.max()),
            policy.end_ids,
            params,
            *mesh.shard_rows((tokens_BT, mask_BT)),
            mesh.shard_rows(sequences),
            greedy or self.temperature == 0,
            temperature,
        )
        return found if len(row_B) == B else tuple(x[:B] for x in found)  # pyright: ignore

    def plan(self, run: Any) -> Generator[PlannedProgram, Any, None]:
        """Yields one program, `decode`, which includes the prefill."""
        policy, mesh, params = run.policy, run.mesh.sampling, run.sampling_params()
        B, W, R = run.sequences, run.prompt_columns, run.response_tokens
        tokens_BT, mask_BT = (run.rows((B, W), dtype, mesh) for dtype in (jnp.int32, jnp.bool_))
        traced = generate.trace(
            policy.decoder,
            self.sampling,
            R,
            policy.end_ids,
            params,
            tokens_BT,
            mask_BT,
            jax.tree.map(lambda x: run.rows(x.shape, x.dtype, mesh), Sequences.shapes(B)),
            False,
        )
        yield PlannedProgram(
            phase="decode",
            traced=traced,
            live=(run.resident_while_sampling(), tokens_BT, mask_BT),
            iterations=R,
            read=R * run.bytes_per_decode_step(params),
        )

    def slots_of(self, sequences: int) -> None:
        """Returns None: all sequences are decoded at once."""


@partial(
    jax.jit,
    static_argnames=("decoder", "sampling", "max_response_tokens", "end_ids"),
)
def generate(
    decoder: Decoder,
    sampling: Sampling,
    max_response_tokens: int,
    end_ids: tuple[int, ...],
    params: Params,
    prompt_tokens_BT: Array,
    prompt_mask_BT: Array,
    sequences: Sequences,
    greedy: Array,
    temperature: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Prefills the prompts, then decodes one token of every row per step until all rows have ended.

    Returns:
      Tokens [B, R], log-probabilities [B, R] and lengths [B] of the responses. Columns beyond a
      row's length are undefined.
    """
    B, width = prompt_tokens_BT.shape
    ends = jnp.asarray(end_ids, jnp.int32)
    prompt_segments_BT = prompt_mask_BT.astype(jnp.int32)
    prompt_positions_BT = jnp.maximum(jnp.cumsum(prompt_segments_BT, axis=1) - 1, 0)

    def choose(hidden_BD: Array, t: Array) -> tuple[Array, Array]:
        logits_BV = decoder.logits(params, hidden_BD)
        return sequences.draw(logits_BV, sampling, t, greedy, temperature)

    def ended(token_B: Array, t: Array) -> Array:
        return jnp.isin(token_B, ends) | (t + 1 == sequences.limits_B)

    def write(out: tuple[Array, ...], column: tuple[Array, ...], t: Array) -> tuple[Array, ...]:
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(buffer, value[:, None], t, axis=1)
            for buffer, value in zip(out, column, strict=True)
        )

    def decode_step(carry: tuple) -> tuple:
        t, done_B, lengths_B, token_B, cache, out = carry
        hidden_BTD, cache = decoder.extend(
            params,
            token_B[:, None],
            (sequences.lengths_B + t - 1)[:, None],
            jnp.ones((B, 1), jnp.int32),
            cache,
            width + t - 1,
        )
        token_B, logprob_B = choose(hidden_BTD[:, 0], t)
        out = write(out, (token_B, logprob_B), t)
        lengths_B = jnp.where(done_B, lengths_B, t + 1)
        return t + 1, done_B | ended(token_B, t), lengths_B, token_B, cache, out

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
    )
    token_B, logprob_B = choose(hidden_BTD[:, -1], jnp.int32(0))
    out = tuple(jnp.zeros((B, max_response_tokens), x.dtype) for x in (token_B, logprob_B))
    out = write(out, (token_B, logprob_B), jnp.int32(0))
    ones_B = jnp.ones(B, jnp.int32)
    start = (jnp.int32(1), ended(token_B, jnp.int32(0)), ones_B, token_B, cache, out)
    _, _, lengths_B, _, _, (tokens_BR, logprobs_BR) = jax.lax.while_loop(
        unfinished, decode_step, start
    )
    return tokens_BR, logprobs_BR, lengths_B
