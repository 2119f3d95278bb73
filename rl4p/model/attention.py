"""Attention, and what each token of a row may see of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.kernels import Kernel, cudnn, splash
from rl4p.model.rope import rotations
from rl4p.types import Array

QUERY_BLOCK = 64
MASKED = -1e30  # finite: a row without any visible key must not become nan


class View(NamedTuple):
    """What attention knows of places: rotations of the tokens' positions, and what they see."""

    cos: Array  # [B, T, 1, h/2]
    sin: Array  # [B, T, 1, h/2]
    mask_BTS: Array
    segment_ids_BT: Array  # of queries; the mask says it too, kernels ask for these
    segment_ids_BS: Array  # of keys


class Views(NamedTuple):
    """The view of layers that see the whole past, and of those that slide; None if there are none.

    What does not differ between them is the same array.
    """

    whole: View | None
    sliding: View | None

    def of(self, slides: bool) -> View:
        view = self.sliding if slides else self.whole
        assert view is not None  # by `views`
        return view

    def choose(self, slides: Array) -> View:
        """The view of a layer of which only the device knows whether it slides."""
        whole, sliding = self.of(False), self.of(True)
        return View(
            *(a if a is b else jnp.where(slides, a, b) for a, b in zip(sliding, whole, strict=True))
        )


def visible(
    query_positions_BT: Array,
    query_segments_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
    window: int | None = None,
) -> Array:
    """The attention mask [B, T, S]: the same segment, not padding, not the future.

    A window cuts what lies as many tokens back or more.
    """
    same = query_segments_BT[:, :, None] == key_segments_BS[:, None, :]
    distance_BTS = query_positions_BT[:, :, None] - key_positions_BS[:, None, :]
    mask_BTS = same & (distance_BTS >= 0) & (key_segments_BS[:, None, :] > 0)
    return mask_BTS if window is None else mask_BTS & (distance_BTS < window)


def views(
    c: DecoderConfig,
    positions_BT: Array,
    segment_ids_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
) -> Views:
    """Those that the decoder's layers need, and no others."""
    places = (positions_BT, segment_ids_BT, key_positions_BS, key_segments_BS)
    segments = segment_ids_BT, key_segments_BS
    rotated = rotations(positions_BT, c.head_width, c.rope_theta, c.rope_scaling)
    if not any(c.sliding):
        return Views(View(*rotated, visible(*places), *segments), None)
    local = rotated
    if c.local_rope_theta is not None:
        local = rotations(positions_BT, c.head_width, c.local_rope_theta, None)
    sliding = View(*local, visible(*places, window=c.window), *segments)
    return Views(None if all(c.sliding) else View(*rotated, visible(*places), *segments), sliding)


def softcapped(x: Array, cap: float | None) -> Array:
    """Squeezed into (-cap, cap): cap tanh(x / cap) (2408.00118)."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def attend(
    q_BTHh: Array,
    k_BKhS: Array,
    v_BKSh: Array,
    view: View,
    *,
    query_scalar: float,
    softcap: float | None,
    in_order: bool,
    kernel: Kernel = "xla",
) -> Array:
    """Softmax attention, H / K query heads to each key head; the softmax is in float32.

    Args:
      k_BKhS, v_BKSh: as a cache holds them, so that decoding multiplies by them as they lie.
      in_order: the queries are the last of the keys' tokens and no token sees a later column, so
        blocks of queries leave the keys behind them out: nearly half of the work.
      kernel: what multiplies, where they are in order.
    """
    if in_order and kernel == "cudnn":
        return cudnn(q_BTHh, k_BKhS, v_BKSh, view.mask_BTS, query_scalar=query_scalar)
    if in_order and kernel == "splash":
        segments = view.segment_ids_BT, view.segment_ids_BS
        options = {"query_scalar": query_scalar, "softcap": softcap}
        return splash(q_BTHh, k_BKhS, v_BKSh, *segments, **options)
    B, T, H, h = q_BTHh.shape
    K = k_BKhS.shape[1]
    # The query heads of a key head side by side: two plain matrix products, faster than one
    # contraction over five axes.
    q_BTKGh = jnp.reshape(q_BTHh * query_scalar**-0.5, (B, T, K, H // K, h))
    q_BKGTh = q_BTKGh.transpose(0, 2, 3, 1, 4)

    def block(start: int, end: int, keys: int) -> jax.Array:
        q_BKMh = q_BKGTh[:, :, :, start:end].reshape(B, K, -1, h)
        scores = jnp.einsum("BKMh,BKhS->BKMS", q_BKMh, k_BKhS[..., :keys]).astype(jnp.float32)
        scores = softcapped(scores, softcap).reshape(B, K, H // K, end - start, keys)
        scores = jnp.where(view.mask_BTS[:, None, None, start:end, :keys], scores, MASKED)
        weights = jax.nn.softmax(scores, axis=-1).astype(v_BKSh.dtype)
        weights_BKMS = weights.reshape(B, K, -1, keys)
        out_BKMh = jnp.einsum("BKMS,BKSh->BKMh", weights_BKMS, v_BKSh[:, :, :keys])
        return out_BKMh.reshape(B, K, H // K, end - start, h)

    if in_order:
        size = -(-T // min(4, max(1, round(T / QUERY_BLOCK))))  # few blocks: each is compiled
        places = [(start, min(start + size, T)) for start in range(0, T, size)]
        before = v_BKSh.shape[2] - T
        blocks = [block(start, end, before + end) for start, end in places]
        out_BKGTh = jnp.concatenate(blocks, axis=3)
    else:
        out_BKGTh = block(0, T, v_BKSh.shape[2])
    return out_BKGTh.transpose(0, 3, 1, 2, 4).reshape(B, T, H * h)
