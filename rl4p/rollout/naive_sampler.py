"""The readable reference sampler: a static batch, one jitted program."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.bounds import Natural, NonNegative, Positive, TopShare
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.sampling import draw
from rl4p.types import Array, Finish, Params, Prompt, Sampling, Texts, Trajectories


@dataclass(frozen=True, kw_only=True)
class NaiveSampler:
    """Samples all sequences side by side until the last of them has ended.

    Each sequence has a random key of its own, folded from the step's key and its number, and each
    token one folded from that: what a sequence says does not depend on its neighbours.

    Attributes:
      max_response_tokens: the limit of a response, the end token included.
      temperature, top_k, top_p: the distribution (`types.Sampling`).
    """

    max_response_tokens: Positive
    temperature: NonNegative = 1.0
    top_k: Natural = 0
    top_p: TopShare = 1.0

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

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
        prompts = tuple(prompt for prompt in prompts for _ in range(group_size))
        tokens_BT, mask_BT = policy.pad_prompts(prompts)
        group_ids_B = np.arange(len(prompts), dtype=np.int32) // group_size
        version_B = np.full(len(prompts), version, np.int32)
        trajectories = generate(
            policy.decoder,
            self.sampling,
            self.max_response_tokens,
            policy.end_ids,
            policy.pad_id,
            params,
            *policy.mesh.shard_rows((tokens_BT, mask_BT, group_ids_B, version_B)),
            key,
            greedy or self.temperature == 0,
        )
        return trajectories, Texts(prompts=prompts, responses=policy.responses(trajectories))


@partial(
    jax.jit,
    static_argnames=("decoder", "sampling", "max_response_tokens", "end_ids", "pad_id"),
)
def generate(
    decoder: Decoder,
    sampling: Sampling,
    max_response_tokens: int,
    end_ids: tuple[int, ...],
    pad_id: int,
    params: Params,
    prompt_tokens_BT: Array,
    prompt_mask_BT: Array,
    group_ids_B: Array,
    version_B: Array,
    key: Array,
    greedy: Array,
) -> Trajectories:
    """Prefill, then one token of every row per turn of a loop that ends with the last row."""
    B, width = prompt_tokens_BT.shape
    layers = decoder.unstack(params)
    ends = jnp.asarray(end_ids, jnp.int32)
    keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(B))
    prompt_segments_BT = prompt_mask_BT.astype(jnp.int32)
    prompt_positions_BT = jnp.maximum(jnp.cumsum(prompt_segments_BT, axis=1) - 1, 0)
    lengths_B = jnp.sum(prompt_segments_BT, axis=1)

    def choose(hidden_BD: Array, t: Array) -> tuple[Array, Array]:
        logits_BV = decoder.logits(params, hidden_BD)
        return draw(logits_BV, sampling, keys_B, jnp.broadcast_to(t, B), greedy)

    def write(column: tuple[Array, ...], t: Array, out: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(buffer, value[:, None], t, axis=1)
            for buffer, value in zip(out, column, strict=True)
        )

    def turn(carry: tuple) -> tuple:
        t, done_B, token_B, cache, out = carry
        hidden_BTD, cache = decoder.extend(
            params,
            layers,
            token_B[:, None],
            (lengths_B + t - 1)[:, None],
            jnp.ones((B, 1), jnp.int32),
            cache,
            width + t - 1,
        )
        token_B, logprob_B = choose(hidden_BTD[:, 0], t)
        token_B = jnp.where(done_B, pad_id, token_B)
        logprob_B = jnp.where(done_B, 0.0, logprob_B)
        out = write((token_B, logprob_B, ~done_B), t, out)
        done_B = done_B | jnp.isin(token_B, ends)
        return t + 1, done_B, token_B, cache, out

    def unfinished(carry: tuple) -> Array:
        t, done_B, *_ = carry
        return (t < max_response_tokens) & ~jnp.all(done_B)

    hidden_BTD, cache = decoder.extend(
        params,
        layers,
        prompt_tokens_BT,
        prompt_positions_BT,
        prompt_segments_BT,
        decoder.empty_cache(B, width + max_response_tokens),
        0,
    )
    token_B, logprob_B = choose(hidden_BTD[:, -1], jnp.int32(0))
    out = (
        jnp.full((B, max_response_tokens), pad_id, jnp.int32),
        jnp.zeros((B, max_response_tokens)),
        jnp.zeros((B, max_response_tokens), bool),
    )
    out = write((token_B, logprob_B, jnp.ones(B, bool)), jnp.int32(0), out)
    start = (jnp.int32(1), jnp.isin(token_B, ends), token_B, cache, out)
    _, done_B, _, _, (tokens_BR, logprobs_BR, mask_BR) = jax.lax.while_loop(unfinished, turn, start)

    prompt_zeros_BT = jnp.zeros((B, width))
    segments_BT = jnp.concatenate([prompt_mask_BT, mask_BR], axis=1).astype(jnp.int32)
    return Trajectories(
        tokens_BT=jnp.concatenate([prompt_tokens_BT, tokens_BR], axis=1),
        response_mask_BT=jnp.concatenate([prompt_zeros_BT.astype(bool), mask_BR], axis=1),
        positions_BT=jnp.maximum(jnp.cumsum(segments_BT, axis=1) - 1, 0),
        segment_ids_BT=segments_BT,
        behaviour_logprobs_BT=jnp.concatenate([prompt_zeros_BT, logprobs_BR], axis=1),
        group_ids_B=group_ids_B,
        policy_version_B=version_B,
        finish_B=jnp.where(done_B, Finish.STOP, Finish.LENGTH).astype(jnp.int8),
    )
