"""Attention and its masks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.model.decoder_config import DecoderConfig, LayerKind
from rl4p.model.kernels import SHARED_PROMPT, Kernel, cudnn, splash
from rl4p.model.rope import rotations

QUERY_BLOCK = 64
MASKED = -1e30  # finite: a row without any visible key must not become nan


class AttentionInputs(NamedTuple):
    """The inputs of attention that depend on positions: rotations, mask and segments."""

    cos: Array  # [B, T, 1, h/2]
    sin: Array  # [B, T, 1, h/2]
    mask_BTS: Array
    segment_ids_BT: Array  # of queries; the mask includes them, but kernels take segments
    segment_ids_BS: Array  # of keys


class Views(NamedTuple):
    """The views of the kinds of layers that a decoder has; they share the arrays that are equal."""

    kinds: tuple[LayerKind, ...]
    inputs: tuple[AttentionInputs, ...]

    def for_layer(self, kind: LayerKind) -> AttentionInputs:
        return self.inputs[self.kinds.index(kind)]

    def traced_layer(self, index: Array | None) -> AttentionInputs:
        """Returns the view of the kind at a traced index, as in a scan over layers.

        The index may be None if there is one kind.
        """
        view, *others = self.inputs
        for i, other in enumerate(others, 1):
            view = AttentionInputs(
                *(
                    a if a is b else jnp.where(index == i, a, b)
                    for a, b in zip(other, view, strict=True)
                )
            )
        return view


def visible(
    query_positions_BT: Array,
    query_segments_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
    window: int | None = None,
) -> Array:
    """Returns the attention mask [B, T, S]: the same segment, not padding, not the future.

    A token of a positive segment also sees the keys of `SHARED_PROMPT`; one of a negative segment
    sees its own segment only. With a window, a token sees no key that is `window` or more tokens
    back.
    """
    queries_BT1, keys_B1S = query_segments_BT[:, :, None], key_segments_BS[:, None, :]
    same = (queries_BT1 == keys_B1S) | ((queries_BT1 > 0) & (keys_B1S == SHARED_PROMPT))
    distance_BTS = query_positions_BT[:, :, None] - key_positions_BS[:, None, :]
    mask_BTS = same & (distance_BTS >= 0) & (keys_B1S != 0)
    return mask_BTS if window is None else mask_BTS & (distance_BTS < window)


def views(
    c: DecoderConfig,
    positions_BT: Array,
    segment_ids_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
) -> Views:
    """Returns a view for each kind of layer that the decoder has."""
    places = (positions_BT, segment_ids_BT, key_positions_BS, key_segments_BS)
    kinds = tuple(sorted(set(c.kinds)))
    masks = {
        slides: visible(*places, window=c.window if slides else None)
        for slides in sorted({kind.slides for kind in kinds})
    }
    whole = rotations(positions_BT, c.rotary_width or c.head_width, c.rope_theta, c.rope_scaling)
    local, none = whole, (jnp.ones_like(whole[0]), jnp.zeros_like(whole[1]))
    if c.local_rope_theta is not None:
        local = rotations(positions_BT, c.head_width, c.local_rope_theta, None)

    def inputs(kind: LayerKind) -> AttentionInputs:
        turns = none if kind.unrotated else local if kind.slides else whole
        return AttentionInputs(*turns, masks[kind.slides], segment_ids_BT, key_segments_BS)

    return Views(kinds, tuple(map(inputs, kinds)))


def softcapped(x: Array, cap: float | None) -> Array:
    """Squeezes x into (-cap, cap) by cap tanh(x / cap) (2408.00118)."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def attend(
    q_BTHh: Array,
    k_BKhS: Array,
    v_BKSh: Array,
    view: AttentionInputs,
    *,
    query_scalar: float,
    softcap: float | None,
    in_order: bool,
    sinks_H: Array | None = None,
    kernel: Kernel = "xla",
) -> Array:
    """Computes softmax attention with H / K query heads per KV head; the softmax is in float32.

    Args:
      k_BKhS, v_BKSh: keys and values in the layout of a cache, so that decoding needs no transpose.
        Their dtype may be wider than that of the queries, which is that of the result.
      in_order: whether the queries are the last T of the S keys and no token sees a later column.
        Blocks of queries then skip later keys, which saves nearly half of the work.
      sinks_H: a score of each head, which takes a share of the softmax and has no value; or None.
      kernel: the implementation to use if `in_order` is set.
    """
    if in_order and kernel == "cudnn":
        return cudnn(q_BTHh, k_BKhS, v_BKSh, view.mask_BTS, query_scalar=query_scalar)
    if in_order and kernel == "splash":
        segments = view.segment_ids_BT, view.segment_ids_BS
        options = {"query_scalar": query_scalar, "softcap": softcap}
        return splash(q_BTHh, k_BKhS, v_BKSh, *segments, **options)
    B, T, H, h = q_BTHh.shape
    K = k_BKhS.shape[1]
    # Merging the query heads of a KV head with the queries gives two plain matrix products, which
    # are faster than a contraction over five axes.
    scaled_BTHh = (q_BTHh * query_scalar**-0.5).astype(k_BKhS.dtype)
    q_BTKGh = jnp.reshape(scaled_BTHh, (B, T, K, H // K, h))
    q_BKGTh = q_BTKGh.transpose(0, 2, 3, 1, 4)

    def block(start: int, end: int, keys: int) -> jax.Array:
        q_BKMh = q_BKGTh[:, :, :, start:end].reshape(B, K, -1, h)
        scores = jnp.einsum("BKMh,BKhS->BKMS", q_BKMh, k_BKhS[..., :keys]).astype(jnp.float32)
        scores = softcapped(scores, softcap).reshape(B, K, H // K, end - start, keys)
        scores = jnp.where(view.mask_BTS[:, None, None, start:end, :keys], scores, MASKED)
        if sinks_H is not None:
            sinks = sinks_H.astype(jnp.float32).reshape(1, K, H // K, 1, 1)
            sinks = jnp.broadcast_to(sinks, (*scores.shape[:-1], 1))
            scores = jnp.concatenate([scores, sinks], axis=-1)
        weights = jax.nn.softmax(scores, axis=-1)[..., :keys].astype(v_BKSh.dtype)
        weights_BKMS = weights.reshape(B, K, -1, keys)
        out_BKMh = jnp.einsum("BKMS,BKSh->BKMh", weights_BKMS, v_BKSh[:, :, :keys])
        return out_BKMh.reshape(B, K, H // K, end - start, h)

    if in_order:
        size = -(-T // min(4, max(1, round(T / QUERY_BLOCK))))  # few, since each compiles
        places = [(start, min(start + size, T)) for start in range(0, T, size)]
        before = v_BKSh.shape[2] - T
        blocks = [block(start, end, before + end) for start, end in places]
        out_BKGTh = jnp.concatenate(blocks, axis=3)
    else:
        out_BKGTh = block(0, T, v_BKSh.shape[2])
    return out_BKGTh.transpose(0, 3, 1, 2, 4).reshape(B, T, H * h).astype(q_BTHh.dtype)
