"""Log-probabilities of given tokens, from one forward pass without a [B, T, V] array."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl4p.distributed.mesh import ONE_DEVICE, Mesh
from rl4p.distributed.partition import gather
from rl4p.learner.microbatches import Rows, fold, rows_of, scattered, spread
from rl4p.learner.shared_prompts import SharedPrompts, pays, take_groups
from rl4p.model.decoder import Decoder, Prefix
from rl4p.model.sampling import sampling_logprobs
from rl4p.types import Array, Microbatching, Params, Sampling, Trajectories

LOGITS_PER_CHUNK = 2**24  # 64 MiB of float32 logits at a time, recomputed in the backward pass


class TokenScores(NamedTuple):
    """Scores of every response token from one forward pass, aligned with `tokens_BT`.

    Only this module handles the offset between a token and the position that predicts it. All
    scores are 0 outside the response mask and in the first column, which no position predicts.

    Attributes:
      logprobs_BT: float32 log p(token t | tokens before t) under the distribution of `Sampling`,
        with token t itself always kept in the support.
      entropy_BT: float32, entropy of the distribution that token t was drawn from, in nats.
      collision_BT: float32, sum of the squared probabilities of that distribution.
    """

    logprobs_BT: Array
    entropy_BT: Array
    collision_BT: Array


def token_scores(
    decoder: Decoder,
    params: Params,
    hidden_BTD: Array,
    trajectories: Trajectories,
    sampling: Sampling,
    temperature: Array | None = None,
) -> TokenScores:
    """Scores the tokens of the responses from the trunk's activations (`trunk`).

    `temperature` replaces that of `sampling` (`sampling_logprobs`).

    About `LOGITS_PER_CHUNK` logits exist at a time. With more than one chunk, the response tokens
    of each row are sorted to the front, and chunks without any response token are skipped.
    """
    B, T, _ = hidden_BTD.shape
    mask_BT = trajectories.response_mask_BT[:, 1:]
    inputs = hidden_BTD[:, :-1], trajectories.tokens_BT[:, 1:]

    def score(hidden_BCD: Array, targets_BC: Array) -> tuple[Array, ...]:
        logits_BCV = decoder.logits(params, hidden_BCD)
        logprobs_BCV = sampling_logprobs(logits_BCV, sampling, targets_BC, temperature)
        # Outside the support, -inf times a probability of 0 would be nan.
        finite_BCV = jnp.where(jnp.isfinite(logprobs_BCV), logprobs_BCV, 0.0)
        probs_BCV = jnp.exp(logprobs_BCV)
        return (
            jnp.take_along_axis(logprobs_BCV, targets_BC[..., None], axis=-1)[..., 0],
            -jnp.sum(probs_BCV * finite_BCV, axis=-1),
            jnp.sum(jnp.square(probs_BCV), axis=-1),
        )

    columns = max(1, LOGITS_PER_CHUNK // (B * decoder.config.vocabulary))
    if columns >= T - 1:
        scores = jax.checkpoint(score)(*inputs)
    else:
        order_BT = jnp.argsort(~mask_BT, axis=1)

        def chunks(x: Array) -> Array:
            """Returns [B, T - 1, ...] sorted by `order_BT`, as [chunks, B, columns, ...]."""
            order = order_BT.reshape(*order_BT.shape, *(1,) * (x.ndim - 2))
            x = jnp.take_along_axis(x, order, axis=1)
            x = jnp.pad(x, ((0, 0), (0, -(T - 1) % columns), *((0, 0),) * (x.ndim - 2)))
            return jnp.moveaxis(x.reshape(B, -1, columns, *x.shape[2:]), 1, 0)

        @jax.checkpoint  # around `cond`: inside it, each chunk would keep a copy of the head
        def score_chunk(chunk: tuple[Array, ...]) -> tuple[Array, ...]:
            *inputs, mask_BC = chunk
            nothing = (jnp.zeros(mask_BC.shape, jnp.float32),) * 3
            return jax.lax.cond(jnp.any(mask_BC), score, lambda *_: nothing, *inputs)

        in_chunks = jax.lax.map(score_chunk, (*map(chunks, inputs), chunks(mask_BT)))
        in_order = (jnp.moveaxis(x, 0, 1).reshape(B, -1)[:, : T - 1] for x in in_chunks)
        back_BT = jnp.argsort(order_BT, axis=1)
        scores = tuple(jnp.take_along_axis(x, back_BT, axis=1) for x in in_order)
    masked = (jnp.where(mask_BT, x, 0.0) for x in scores)
    return TokenScores(*(jnp.pad(x, ((0, 0), (1, 0))) for x in masked))


def trunk(
    decoder: Decoder, params: Params, trajectories: Trajectories, before: Prefix | None = None
) -> Array:
    """Returns the activations [B, T, D] that every head reads."""
    return decoder.hidden(
        params,
        trajectories.tokens_BT,
        trajectories.positions_BT,
        trajectories.segment_ids_BT,
        before,
    )


@partial(
    jax.jit,
    static_argnames=(*("decoder", "sampling", "microbatching", "names", "values", "mesh"),),
)
def score_tokens(
    decoder: Decoder,
    params: Params,
    trajectories: Trajectories,
    sampling: Sampling,
    *,
    microbatching: Microbatching,
    names: tuple[str, ...] = ("logprobs",),
    values: Callable[..., Array] | None = None,
    mesh: Mesh = ONE_DEVICE,
    temperature: Array | None = None,
) -> dict[str, Array]:
    """Scores the response tokens in microbatches, without a gradient.

    Args:
      names: the scores to compute: logprobs, entropy, collision (`TokenScores`), values.
      values: the critic's function of (decoder, params, activations, trajectories).
      mesh: the mesh whose devices share the rows; each device forms its own microbatches.
      temperature: a scalar in place of that of `sampling` (`sampling_logprobs`).

    Returns:
      The scores by name, float32 [B, T].
    """
    shared = values is None and pays(trajectories, mesh)  # a critic may run the prompts itself

    def of_rows(whole: Any, trajectories: Trajectories) -> dict[str, Array]:
        params, temperature = gather(whole[0], decoder.dtype), whole[1]
        prompts = SharedPrompts.of(decoder, trajectories, microbatching, shared=shared)
        trajectories, of_prompts = prompts.rest(trajectories), prompts.keys_and_values(params)

        def score(found: dict[str, Array], part: Trajectories, rows: Rows) -> dict[str, Array]:
            groups_b = prompts.groups(rows)
            before = prompts.before(take_groups(of_prompts, groups_b), groups_b)
            hidden_BTD = trunk(decoder, params, part, before)
            scores = token_scores(decoder, params, hidden_BTD, part, sampling, temperature)
            new = {name: getattr(scores, f"{name}_BT") for name in names if name != "values"}
            if values is not None:
                new["values"] = values(decoder, params, hidden_BTD, part)
            return {name: rows.put(found[name], x) for name, x in new.items()}

        zeros_BT = jnp.zeros(trajectories.tokens_BT.shape, jnp.float32)
        found = fold(
            score,
            dict.fromkeys((*names, "values") if values else names, zeros_BT),
            trajectories,
            trajectories.segment_ids_BT,
            microbatching,
        )
        return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (prompts.columns, 0))), found)

    def of_all(trajectories: Trajectories, together: int = 1) -> dict[str, Array]:
        segment_ids_BT = trajectories.segment_ids_BT
        return spread(
            of_rows, (params, temperature), trajectories, segment_ids_BT, mesh, together=together
        )

    if not shared:
        return of_all(trajectories)
    by_group_B = jnp.argsort(trajectories.group_ids_B)
    found = of_all(rows_of(trajectories, by_group_B), trajectories.group_size)
    return scattered(found, by_group_B, len(by_group_B))
