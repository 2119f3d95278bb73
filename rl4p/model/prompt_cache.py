"""Attention to prompts whose keys and values several rows share while they are decoded.

The keys and values of a prompt stand once, apart from those of the rows that continue it. The
queries of these rows are multiplied with them together: a product of matrices, which reads them
once. The two parts of the attention of a row, to its prompt and to its own tokens, are joined as
blocks are in flash attention (2205.14135). With scores s_i, values v_i, and of each part

    m = max s_i    z = sum exp(s_i - m)    o = sum exp(s_i - m) v_i

the result is (a o + a' o') / (a z + a' z'), where a = exp(m - max(m, m')), and a' likewise.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.model.attention import MASKED, AttentionInputs, softcapped, visible
from rl4p.model.cache import AnyKeysValues, Cache
from rl4p.model.decoder_config import DecoderConfig


class PromptCache(NamedTuple):
    """The prompts of B rows that are decoded together.

    The rows and the prompts are divided into the same shards; indices count from the first row or
    prompt of the same shard.

    Attributes:
      cache: of P prompts; layers with a state, of which each row has its own, have `NoCache`.
      row_PM: int32, the rows that continue each prompt; any row where there are fewer than M.
      place_B: int32, where each row stands in the flattened `row_PM`.
    """

    cache: Cache
    row_PM: Array
    place_B: Array


class PromptView(NamedTuple):
    """The inputs of attention to prompts that depend on positions.

    Attributes:
      mask_PMTS: which tokens of its prompt each query sees; 1 for M and T if all see the same.
      row_PM, place_B: as in `PromptCache`.
      shards: the number of parts that rows and prompts are divided into.
    """

    mask_PMTS: Array
    row_PM: Array
    place_B: Array
    shards: int


def with_prompts(
    seen: dict[Any, AttentionInputs],
    prompts: PromptCache,
    positions_BT: Array,
    segment_ids_BT: Array,
    config: DecoderConfig,
    shards: int,
) -> dict[Any, AttentionInputs]:
    """Returns the views of all kinds of layers, with those of the prompts.

    Args:
      config: has the window of the layers that slide.
    """
    (P, M), T = prompts.row_PM.shape, positions_BT.shape[1]
    keys = prompts.cache.positions_BS, prompts.cache.segment_ids_BS
    # All queries are behind their prompt: without a window, they see all of it.
    masks = {False: (keys[1] != 0)[:, None, None]}
    if any(kind.slides for kind in seen):

        def of_prompts(x_BT: Array) -> Array:
            return taken(x_BT, prompts.row_PM, shards).reshape(P, M * T)

        queries = of_prompts(positions_BT), of_prompts(segment_ids_BT)
        options: Any = {"window": config.window, "chunked": config.chunked}
        masks[True] = visible(*queries, *keys, **options).reshape(P, M, T, -1)
    view_of = {
        slides: PromptView(mask, prompts.row_PM, prompts.place_B, shards)
        for slides, mask in masks.items()
    }
    return {kind: view._replace(prompts=view_of[kind.slides]) for kind, view in seen.items()}


def taken(x: Array, index: Array, shards: int) -> jax.Array:
    """Returns x[index] of the first axis, within each shard of x and of the index."""

    def take(x: Array, index: Array) -> jax.Array:
        return jnp.take(x, index, axis=0, mode="clip")

    if shards == 1:
        return take(x, index)
    parts = (y.reshape(shards, -1, *y.shape[1:]) for y in (x, index))
    return jax.vmap(take)(*parts).reshape(*index.shape, *x.shape[1:])


def attend_with_prompt(
    q_BTHh: Array,
    own: AnyKeysValues,
    prompt: AnyKeysValues,
    view: AttentionInputs,
    *,
    query_scalar: float,
    softcap: float | None,
    sinks_H: Array | None,
) -> Array:
    """Computes attention to the prompt and to the row's own tokens; `attend` has the arguments."""
    B, T, H, h = q_BTHh.shape
    K, dtype = own.values_BKSh.shape[1], (own.scales or own)[0].dtype
    q_BTKGh = (q_BTHh * query_scalar**-0.5).astype(dtype).reshape(B, T, K, H // K, h)
    caches = [CachedKeys([x.keys_BKhS], x.values_BKSh, x.scales) for x in (own, prompt)]
    out_BTKGv = joined([q_BTKGh], caches[0], caches[1], view, softcap=softcap, sinks_H=sinks_H)
    return out_BTKGv.reshape(B, T, -1).astype(q_BTHh.dtype)


class CachedKeys(NamedTuple):
    """The factors of scores, the values, and the scales of both if they are in int8."""

    factors_PKhS: Sequence[Array]
    values_PKSv: Array
    scales: tuple[Array, Array] | None = None


def joined(
    queries_BTKGh: Sequence[Array],
    own: CachedKeys,
    prompt: CachedKeys,
    view: AttentionInputs,
    *,
    softcap: float | None = None,
    sinks_H: Array | None = None,
) -> jax.Array:
    """Returns the attention of rows to their prompts and their own tokens, float32 [B, T, K, G, v].

    Args:
      queries_BTKGh: queries, scaled. The scores are the sum of their products with the keys of the
        same place.
    """
    shared: Any = view.prompts
    rows = partial(taken, index=shared.row_PM, shards=shared.shards)
    alone = [x[:, None] for x in queries_BTKGh]
    parts = [part(alone, own, view.mask_BTS[:, None], softcap)]
    together = part([rows(x) for x in queries_BTKGh], prompt, shared.mask_PMTS, softcap)

    def back(x_PMTKGv: Array) -> jax.Array:
        flat = x_PMTKGv.reshape(-1, *x_PMTKGv.shape[2:])
        return taken(flat, shared.place_B, shared.shards)[:, None]

    parts.append((back(together[0]), back(together[1]), back(together[2])))
    most = jnp.maximum(parts[0][1], parts[1][1])
    total, out = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
    if sinks_H is not None:  # a score without a value
        K, G = most.shape[3:5]
        sinks = sinks_H.astype(jnp.float32).reshape(1, 1, 1, K, G, 1)
        most = jnp.maximum(most, sinks)
        total = jnp.exp(sinks - most)
    for own_out, own_most, own_total in parts:
        share = jnp.exp(own_most - most)
        total, out = total + share * own_total, out + share * own_out
    return (out / total)[:, 0]


def part(
    queries_PMTKGh: Sequence[Array], keys: CachedKeys, mask_PMTS: Array, softcap: float | None
) -> tuple[Array, Array, Array]:
    """Returns o, m and z of the module's formula: [P, M, T, K, G, v] and twice [..., 1], float32.

    The queries of M rows are multiplied with the keys of each of P rows at once.
    """
    factors, values_PKSv, scales = keys
    P, M, T, K, G, _ = queries_PMTKGh[0].shape
    S = values_PKSv.shape[2]
    scores = jnp.zeros((), jnp.float32)
    for q, k in zip(queries_PMTKGh, factors, strict=True):
        q_PKNh = q.transpose(0, 3, 1, 2, 4, 5).reshape(P, K, M * T * G, -1)
        k = k.astype(q.dtype)  # within the product, which reads int8
        scores += jnp.einsum("PKNh,PKhS->PKNS", q_PKNh, k).astype(jnp.float32)
    if scales is not None:
        scores *= scales[0].astype(jnp.float32)
    scores = softcapped(scores, softcap).reshape(P, K, M, T, G, S)
    scores = jnp.where(mask_PMTS[:, None, :, :, None], scores, MASKED)
    most = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - most)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if scales is not None:
        weights *= scales[1][:, :, None, None].astype(jnp.float32)
    dtype = queries_PMTKGh[0].dtype
    weights_PKNS = weights.astype(dtype).reshape(P, K, -1, S)
    values = values_PKSv.astype(dtype)
    out = jnp.einsum("PKNS,PKSv->PKNv", weights_PKNS, values, preferred_element_type=jnp.float32)
    shaped = out.reshape(P, K, M, T, G, -1), most, total
    return tuple(x.transpose(0, 2, 3, 1, 4, 5) for x in shaped)  # pyright: ignore[reportReturnType]
