"""Attention and its masks, by XLA and by kernels of accelerators for full sequences.

The kernels never store the score matrix. The T queries belong to the last T of the S keys.
Decoding, with one query per row, uses XLA.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import PartitionSpec

from rl4p.base.errors import InputError
from rl4p.base.types import Array
from rl4p.model.decoder_config import DecoderConfig, LayerKind
from rl4p.model.exact_sums import LEAST, aligned, attended
from rl4p.model.rope import YarnScaling, rotations

Kernel = Literal["xla", "cudnn", "splash"]
Choice = Literal["auto", "xla", "cudnn", "splash"]
OF_PLATFORM: dict[str, Kernel] = {"gpu": "cudnn", "tpu": "splash"}  # the fastest, if it can be used
SHARED_PROMPT = -1  # the segment of keys that tokens of all positive segments see
MOST_SEQUENCES = 8  # of a row, behind such keys
APART = 2.0**15  # what `splash` lowers the scores of other sequences' keys by
EVERYWHERE, MOST_HEAD_WIDTH = 128, 256  # the head widths of cuDNN since Ampere, since Hopper
LANES = 128  # splash takes blocks of a multiple of this many queries and keys


def kernel_for(choice: Choice, config: DecoderConfig, dtype: str, platform: str) -> Kernel:
    """Returns the kernel of `model.attention`.

    `auto` is `splash` on TPUs and `cudnn` on NVIDIA GPUs, if the kernel supports the model, and
    `xla` everywhere else.

    Raises:
      InputError: these devices do not have the kernel, or it does not support the model.
    """
    if choice == "auto":
        fastest = OF_PLATFORM.get(platform, "xla")
        if fastest == "cudnn" and (widest(config) > EVERYWHERE or not has_flash_attention()):
            return "xla"
        return "xla" if obstacle(fastest, config, dtype, platform) else fastest
    if reason := obstacle(choice, config, dtype, platform):
        raise InputError(f"model.attention={choice} {reason}: choose model.attention=auto.")
    return choice


def widest(c: DecoderConfig) -> int:
    """Returns the head width of the layer with the widest heads."""
    return max(c.head_width, c.full.head_width if c.full else 0)


def has_flash_attention() -> bool:
    """Returns whether cuDNN has these kernels for the GPUs of this machine: NVIDIA's since Ampere.

    A machine without GPUs, which plans for some, tells nothing against it.
    """
    capability = getattr(jax.devices()[0], "compute_capability", "8.0")
    return re.fullmatch(r"\d+\.\d", capability) is not None and float(capability) >= 8


def obstacle(kernel: Kernel, config: DecoderConfig, dtype: str, platform: str) -> str | None:
    """Returns why a kernel cannot be used, in words that follow its name; None if it can."""
    if kernel == "xla":
        return None
    where, devices = {"cudnn": ("gpu", "an NVIDIA GPU"), "splash": ("tpu", "a TPU")}[kernel]
    reasons = {
        f"needs {devices}, but these devices are {platform}": platform != where,
        f"needs model.dtype=bfloat16, not {dtype}": kernel == "cudnn" and dtype != "bfloat16",
        f"needs a head width divisible by 8, not {config.head_width}": config.head_width % 8 != 0,
        f"needs a head width of at most {MOST_HEAD_WIDTH}, not {widest(config)}": (
            kernel == "cudnn" and widest(config) > MOST_HEAD_WIDTH
        ),
        "does not support this model's score cap": kernel == "cudnn" and config.attention_softcap,
        "does not support this model's sliding window": kernel == "splash" and any(config.sliding),
        "does not support this model's attention sinks": config.attention_sinks,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def cudnn(
    q_BTHh: Array, k_BKhS: Array, v_BKSh: Array, mask_BTS: Array, *, query_scalar: float
) -> jax.Array:
    """Computes attention by cuDNN (2205.14135), through JAX.

    cuDNN has no gradient for an odd number of queries or keys, so one is added that nothing sees.
    """
    run = partial(cudnn_on_heads, query_scalar=query_scalar)
    return on_own_heads(run, q_BTHh, k_BKhS, v_BKSh, mask_BTS)


def cudnn_on_heads(
    q_BTHh: Array, k_BKhS: Array, v_BKSh: Array, mask_BTS: Array, *, query_scalar: float
) -> jax.Array:
    """Runs the kernel of `cudnn` on the heads of one device."""
    B, T = q_BTHh.shape[:2]

    def even(x: Array, *axes: int) -> jax.Array:
        return jnp.pad(x, [(0, x.shape[i] % 2 if i in axes else 0) for i in range(x.ndim)])

    out_BTHh = jax.nn.dot_product_attention(
        even(q_BTHh, 1),
        even(k_BKhS.transpose(0, 3, 1, 2), 1),
        even(v_BKSh.swapaxes(1, 2), 1),
        mask=even(mask_BTS, 1, 2)[:, None],
        scale=query_scalar**-0.5,
        implementation="cudnn",
    )
    return out_BTHh[:, :T].reshape(B, T, -1)


def splash(
    q_BTHh: Array,
    k_BKhS: Array,
    v_BKSh: Array,
    segment_ids_BT: Array,
    segment_ids_BS: Array,
    *,
    query_scalar: float,
    softcap: float | None,
    interpret: bool = False,
) -> jax.Array:
    """Computes attention by JAX's TPU kernel, which skips blocks of keys after the queries.

    Segments say what a token sees as in `attention.visible`.
    """
    options = {"query_scalar": query_scalar, "softcap": softcap, "interpret": interpret}
    run = partial(splash_on_heads, **options)
    return on_own_heads(run, q_BTHh, k_BKhS, v_BKSh, segment_ids_BT, segment_ids_BS)


def on_own_heads(
    run: Callable[..., jax.Array], q_BTHh: Array, k_BKhS: Array, v_BKSh: Array, *others: Array
) -> jax.Array:
    """Runs a kernel on the heads of each device along `tp`: the compiler cannot divide a kernel.

    Args:
      run: takes the arrays, of which the others are the same for all heads.
    """
    arguments = (q_BTHh, k_BKhS, v_BKSh, *others)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("tp", 1) == 1 or "tp" in mesh.manual_axes:
        return run(*arguments)
    heads, keys = PartitionSpec(None, None, "tp"), PartitionSpec(None, "tp")
    places = (heads, keys, keys, *(PartitionSpec() for _ in others))
    return jax.shard_map(run, in_specs=places, out_specs=heads, axis_names={"tp"}, check_vma=False)(
        *arguments
    )


def splash_on_heads(
    q_BTHh: Array,
    k_BKhS: Array,
    v_BKSh: Array,
    segment_ids_BT: Array,
    segment_ids_BS: Array,
    *,
    query_scalar: float,
    softcap: float | None,
    interpret: bool,
) -> jax.Array:
    """Runs the kernel of `splash` on the heads of one device."""
    B, T, H, h = q_BTHh.shape
    _, K, S, _ = v_BKSh.shape
    more = -T % LANES  # padding queries, each of which sees one padding key
    keys = S + more + -(S + more) % LANES

    def filled(x: Array, axis: int, size: int) -> jax.Array:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, size - x.shape[axis])
        return jnp.pad(x, widths)

    q_BTKGh = jnp.reshape(q_BTHh * query_scalar**-0.5, (B, T, K, H // K, h))
    k_BKSh = k_BKhS.swapaxes(2, 3)
    if S > T and softcap is None:
        q_BTKGh, k_BKSh, segment_ids_BT, segment_ids_BS = with_sequences(
            q_BTKGh, k_BKSh, segment_ids_BT, segment_ids_BS
        )
    q = filled(q_BTKGh.transpose(0, 2, 3, 1, 4), 3, T + more)
    k, v = filled(k_BKSh, 2, keys), filled(v_BKSh, 2, keys)
    ids = splash_attention.SegmentIds(
        q=filled(segment_ids_BT, 1, T + more), kv=filled(segment_ids_BS, 1, keys)
    )
    mask = splash_attention.CausalMask((T + more, keys), offset=S - T)
    block_q, block_kv = (max(b for b in (128, 256, 512) if n % b == 0) for n in (T + more, keys))
    sizes = splash_attention.BlockSizes(
        **dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), block_q),
        **dict.fromkeys(("block_kv", "block_kv_dkv", "block_kv_dq"), block_kv),
    )
    kernel = splash_attention.make_splash_mqa_single_device(
        splash_attention.MultiHeadMask([mask] * (H // K)),
        block_sizes=sizes,
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )
    per_kv_head = jax.vmap(kernel, in_axes=(0, 0, 0, None))
    out_BKGTh = jnp.asarray(jax.vmap(per_kv_head)(q, k, v, ids))[..., :T, :]
    return out_BKGTh.transpose(0, 3, 1, 2, 4).reshape(B, T, H * h)


def with_sequences(
    q_BTKGh: Array, k_BKSh: Array, segment_ids_BT: Array, segment_ids_BS: Array
) -> tuple[Array, Array, Array, Array]:
    """Returns queries and keys with eight more columns, and the segments for the kernel.

    In the kernel a key has one segment, but all sequences of a packed row see their prompt. So the
    prompt and all positive segments are 1 there; the others keep their number, without its sign.
    The new columns separate the sequences: they lower the score of a key of another sequence by
    `APART`, and add 0 to all other scores.
    """
    T, S = segment_ids_BT.shape[1], segment_ids_BS.shape[1]
    before_BT = jnp.pad(segment_ids_BT[:, :-1], ((0, 0), (1, 0)))
    begins_BT = (segment_ids_BT > 0) & (segment_ids_BT != before_BT)
    own_BTM = jax.nn.one_hot(jnp.cumsum(begins_BT, axis=1) - 1, MOST_SEQUENCES, dtype=q_BTKGh.dtype)
    others_BSM = jnp.pad(own_BTM - 1, ((0, 0), (S - T, 0), (0, 0)))
    own = jnp.broadcast_to(own_BTM[:, :, None, None], (*q_BTKGh.shape[:-1], MOST_SEQUENCES))
    others = jnp.broadcast_to(others_BSM[:, None], (*k_BKSh.shape[:-1], MOST_SEQUENCES))
    q = jnp.concatenate([q_BTKGh, APART * own], axis=-1)
    k = jnp.concatenate([k_BKSh, others.astype(k_BKSh.dtype)], axis=-1)
    shared_B1 = jnp.any(segment_ids_BS == SHARED_PROMPT, axis=1, keepdims=True)
    ids_BT, ids_BS = (
        jnp.where(shared_B1 & (ids > 0), 1, jnp.abs(ids))
        for ids in (segment_ids_BT, segment_ids_BS)
    )
    return q, k, ids_BT, ids_BS


QUERY_BLOCK = 64
MASKED = -1e30  # finite: a row without any visible key must not become nan


class AttentionInputs(NamedTuple):
    """The inputs of attention that depend on positions: rotations, mask and segments."""

    cos: Array  # [B, T, 1, h/2]
    sin: Array  # [B, T, 1, h/2]
    mask_BTS: Array
    segment_ids_BT: Array  # of queries; the mask includes them, but kernels take segments
    segment_ids_BS: Array  # of keys
    growth: Array | None = None  # [B, T, 1, 1], factors of queries; None if they are 1
    normed: Array | None = None  # bool, whether rotated queries and keys are normed; None if never
    prompts: Any = None  # a `prompt_cache.PromptView` if rows share the cache of their prompt


def traced_view(seen: dict[LayerKind, AttentionInputs], index: Array | None) -> AttentionInputs:
    """Returns the view at a traced index, as in a scan over layers; None if there is one view."""
    view, *others = seen.values()
    for i, other in enumerate(others, 1):

        def chosen(a: Array, b: Array, i: int = i) -> Array:
            return a if a is b else jnp.where(index == i, a, b)

        view = jax.tree.map(chosen, other, view)
    return view


def visible(
    query_positions_BT: Array,
    query_segments_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
    window: int | None = None,
    *,
    chunked: bool = False,
) -> Array:
    """Returns the attention mask [B, T, S]: the same segment, not padding, not the future.

    A token of a positive segment also sees the keys of `SHARED_PROMPT`; one of a negative segment
    sees its own segment only. With a window, a token sees no key that is `window` or more tokens
    back, or if `chunked` is set, none of another chunk of so many positions.
    """
    queries_BT1, keys_B1S = query_segments_BT[:, :, None], key_segments_BS[:, None, :]
    same = (queries_BT1 == keys_B1S) | ((queries_BT1 > 0) & (keys_B1S == SHARED_PROMPT))
    distance_BTS = query_positions_BT[:, :, None] - key_positions_BS[:, None, :]
    mask_BTS = same & (distance_BTS >= 0) & (keys_B1S != 0)
    if window is None:
        return mask_BTS
    if chunked:
        chunk_BT, chunk_BS = query_positions_BT // window, key_positions_BS // window
        return mask_BTS & (chunk_BT[:, :, None] == chunk_BS[:, None, :])
    return mask_BTS & (distance_BTS < window)


def views(
    c: DecoderConfig,
    positions_BT: Array,
    segment_ids_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
) -> dict[LayerKind, AttentionInputs]:
    """Returns a view for each kind of layer that the decoder has; they share equal arrays."""
    places = (positions_BT, segment_ids_BT, key_positions_BS, key_segments_BS)
    kinds = sorted(set(c.kinds))
    masks = {
        slides: visible(*places, window=c.window if slides else None, chunked=c.chunked)
        for slides in sorted({kind.slides for kind in kinds})
    }
    width = c.rotary_width or (c.full or c).head_width
    whole = rotations(positions_BT, width, c.rope_theta, c.rope_scaling)
    local, none = whole, (jnp.ones_like(whole[0]), jnp.zeros_like(whole[1]))
    growth = query_growth(c, positions_BT)
    if c.local_rope_theta is not None:
        local = rotations(positions_BT, c.head_width, c.local_rope_theta, None)

    seen = {}
    for kind in kinds:
        turns = none if kind.unrotated else local if kind.slides else whole
        inputs = masks[kind.slides], segment_ids_BT, key_segments_BS
        own = growth
        if growth is not None and c.query_growth_step and not kind.unrotated:
            own = jnp.ones_like(growth)
        normed = jnp.asarray(not kind.unrotated) if c.normed_rotations else None
        seen[kind] = AttentionInputs(*turns, *inputs, own, normed)
    return seen


def query_growth(c: DecoderConfig, positions_BT: Array) -> jax.Array | None:
    """Returns the factors of queries [B, T, 1, 1] where they grow; None if they do not."""
    rate = c.query_growth if c.latent is None else c.latent.query_growth
    positions_BT = jnp.asarray(positions_BT)
    if c.query_growth_step:
        times_BT = (positions_BT + 1) // c.query_growth_step
    elif rate and isinstance(c.rope_scaling, YarnScaling):
        times_BT = positions_BT // c.rope_scaling.original_max_positions
    else:
        return None
    logs_BT = jnp.log1p(times_BT.astype(jnp.float32))
    return (1 + rate * logs_BT)[:, :, None, None]


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
    exact: bool = False,
    scales: tuple[Array, Array] | None = None,
) -> Array:
    """Computes softmax attention with H / K query heads per KV head; the softmax is in float32.

    Args:
      k_BKhS, v_BKSh: keys and values in the layout of a cache, so that decoding needs no transpose.
        The mask may have fewer columns, and no query sees the others.
        Their dtype may be wider than that of the queries, which is that of the result.
      in_order: whether the queries are the last T of the S keys and no token sees a later column.
        Blocks of queries then skip later keys, which saves nearly half of the work.
      sinks_H: a score of each head, which takes a share of the softmax and has no value; or None.
      kernel: the implementation to use if `in_order` is set.
      exact: whether the order of sums depends on no other row (`exact_sums.py`).
      scales: those of keys and of values, if they are in int8 (`cache.QuantizedKeysValues`).
    """
    B, T, H, h = q_BTHh.shape
    _, K, keys_in_all, v = v_BKSh.shape  # values may be narrower than keys
    if in_order and kernel != "xla":
        v_BKSh = jnp.pad(v_BKSh, [(0, 0)] * 3 + [(0, h - v)])
        if kernel == "cudnn":
            out = cudnn(q_BTHh, k_BKhS, v_BKSh, view.mask_BTS, query_scalar=query_scalar)
        else:
            segments = view.segment_ids_BT, view.segment_ids_BS
            options = {"query_scalar": query_scalar, "softcap": softcap}
            out = splash(q_BTHh, k_BKhS, v_BKSh, *segments, **options)
        return out if h == v else out.reshape(B, T, H, h)[..., :v].reshape(B, T, H * v)
    if exact:
        k_BKhS, v_BKSh, mask_BTS = aligned(k_BKhS, v_BKSh, view.mask_BTS, view.segment_ids_BS)
        view = view._replace(mask_BTS=mask_BTS)
    # Merging the query heads of a KV head with the queries gives two plain matrix products, which
    # are faster than a contraction over five axes.
    dtype = k_BKhS.dtype if scales is None else scales[0].dtype
    scaled_BTHh = (q_BTHh * query_scalar**-0.5).astype(dtype)
    q_BTKGh = jnp.reshape(scaled_BTHh, (B, T, K, H // K, h))
    q_BKGTh = q_BTKGh.transpose(0, 2, 3, 1, 4)

    def block(start: int, end: int, keys: int) -> jax.Array:
        if exact:
            keys = min(-(-keys // LEAST) * LEAST, k_BKhS.shape[3])
        q_BKMh = q_BKGTh[:, :, :, start:end].reshape(B, K, -1, h)
        k = k_BKhS[..., :keys].astype(dtype)  # within the product, which reads int8
        scores = jnp.einsum("BKMh,BKhS->BKMS", q_BKMh, k).astype(jnp.float32)
        if scales is not None:
            scores *= scales[0][..., :keys].astype(jnp.float32)
        scores = softcapped(scores, softcap).reshape(B, K, H // K, end - start, keys)
        scores = jnp.where(view.mask_BTS[:, None, None, start:end, :keys], scores, MASKED)
        if sinks_H is not None:
            sinks = sinks_H.astype(jnp.float32).reshape(1, K, H // K, 1, 1)
            sinks = jnp.broadcast_to(sinks, (*scores.shape[:-1], 1))
            scores = jnp.concatenate([scores, sinks], axis=-1)
        if exact:
            scores_BKMS = scores.reshape(B, K, -1, keys)
            out_BKMh = attended(scores_BKMS, v_BKSh[:, :, :keys])[..., :v]
            return out_BKMh.reshape(B, K, H // K, end - start, v)
        weights = jax.nn.softmax(scores, axis=-1)[..., :keys]
        if scales is not None:
            weights *= scales[1][:, :, None, :, :keys].astype(jnp.float32)
        weights_BKMS = weights.astype(dtype).reshape(B, K, -1, keys)
        values = v_BKSh[:, :, :keys].astype(dtype)
        out_BKMh = jnp.einsum("BKMS,BKSh->BKMh", weights_BKMS, values)
        return out_BKMh.reshape(B, K, H // K, end - start, v)

    if in_order:
        size = -(-T // min(4, max(1, round(T / QUERY_BLOCK))))  # few, since each compiles
        places = [(start, min(start + size, T)) for start in range(0, T, size)]
        before = keys_in_all - T
        blocks = [block(start, end, before + end) for start, end in places]
        out_BKGTh = jnp.concatenate(blocks, axis=3)
    else:
        out_BKGTh = block(0, T, view.mask_BTS.shape[2])
    return out_BKGTh.transpose(0, 3, 1, 2, 4).reshape(B, T, H * v).astype(q_BTHh.dtype)
