"""A short reference sampler: a static batch in one jitted program."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.model.sampling import draw
from rl4p.protocols import PlannedProgram
from rl4p.rollout.options import SamplerOptions
from rl4p.types import Array, Params, Prompt, Sampling, Texts, Trajectories


@dataclass(frozen=True, kw_only=True)
class NaiveSampler(SamplerOptions):
    """A sampler that decodes all sequences in one batch until the last of them has ended.

    Each sequence has its own random key, folded from the step's key and the sequence's number. Each
    token has a key folded from its sequence's key. A sequence therefore does not depend on the
    other sequences of the batch.

    To keep the code short, the prompt is prefilled once per sequence; `continuous` prefills it
    once per group.
    """

    def __call__(
        self,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[Trajectories, Texts]:
        tokens_PT, mask_PT = policy.pad_prompts(prompts)
        mesh = policy.mesh.sampling
        rows = (np.repeat(x, group_size, axis=0) for x in (tokens_PT, mask_PT))
        tokens_BR, lengths_B, logprobs_BR = generate(
            policy.decoder,
            self.sampling,
            self.max_response_tokens,
            policy.end_ids,
            policy.for_sampling(params),
            *mesh.shard_rows(tuple(rows)),
            mesh.replicate(key),
            greedy or self.temperature == 0,
        )
        return policy.trajectories(
            prompts,
            group_size,
            tokens_BR=tokens_BR,
            lengths_B=lengths_B,
            logprobs_BR=logprobs_BR,
            version=version,
        )

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
            run.replicated(run.state.key, mesh),
            False,
        )
        yield PlannedProgram(
            phase="decode",
            traced=traced,
            live=(run.resident_while_sampling(), tokens_BT, mask_BT),
            turns=R,
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
    key: Array,
    greedy: Array,
) -> tuple[Array, Array, Array]:
    """Prefills the prompts, then decodes one token of every row per step until all rows have ended.

    Returns:
      Tokens [B, R], lengths [B] and log-probabilities [B, R] of the responses. Columns beyond a
      row's length are undefined.
    """
    B, width = prompt_tokens_BT.shape
    ends = jnp.asarray(end_ids, jnp.int32)
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(B))
    prompt_segments_BT = prompt_mask_BT.astype(jnp.int32)
    prompt_positions_BT = jnp.maximum(jnp.cumsum(prompt_segments_BT, axis=1) - 1, 0)
    prompt_lengths_B = jnp.sum(prompt_segments_BT, axis=1)

    def choose(hidden_BD: Array, t: Array) -> tuple[Array, Array]:
        logits_BV = decoder.logits(params, hidden_BD)
        return draw(logits_BV, sampling, keys_B, jnp.broadcast_to(t, B), greedy)

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
            (prompt_lengths_B + t - 1)[:, None],
            jnp.ones((B, 1), jnp.int32),
            cache,
            width + t - 1,
        )
        token_B, logprob_B = choose(hidden_BTD[:, 0], t)
        out = write(out, (token_B, logprob_B), t)
        lengths_B = jnp.where(done_B, lengths_B, t + 1)
        return t + 1, done_B | jnp.isin(token_B, ends), lengths_B, token_B, cache, out

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
    start = (jnp.int32(1), jnp.isin(token_B, ends), ones_B, token_B, cache, out)
    _, _, lengths_B, _, _, (tokens_BR, logprobs_BR) = jax.lax.while_loop(
        unfinished, decode_step, start
    )
    return tokens_BR, lengths_B, logprobs_BR
