"""Attention kernels of accelerators for full sequences, which never store the score matrix.

The T queries belong to the last T of the S keys. Decoding, with one query per row, uses XLA.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import PartitionSpec

from rl4p.base.errors import InputError
from rl4p.base.types import Array
from rl4p.model.decoder_config import DecoderConfig

Kernel = Literal["xla", "cudnn", "splash"]

SHARED_PROMPT = -1  # the segment of keys that tokens of all positive segments see
MOST_SEQUENCES = 8  # of a row, behind such keys
APART = 2.0**15  # what `splash` lowers the scores of other sequences' keys by
LANES = 128  # splash takes blocks of a multiple of this many queries and keys


def check_kernel(kernel: Kernel, config: DecoderConfig, dtype: str, platform: str) -> None:
    """Checks that these devices have the kernel and that it supports the model.

    Raises:
      InputError: the kernel cannot be used; says why.
    """
    name = f"model.attention={kernel}"
    if kernel == "xla":
        return
    where, devices = {"cudnn": ("gpu", "an NVIDIA GPU"), "splash": ("tpu", "a TPU")}[kernel]
    reasons = {
        f"needs {devices}, but these devices are {platform}": platform != where,
        f"needs model.dtype=bfloat16, not {dtype}": kernel == "cudnn" and dtype != "bfloat16",
        f"needs a head width divisible by 8, not {config.head_width}": config.head_width % 8 != 0,
        "does not support this model's score cap": kernel == "cudnn" and config.attention_softcap,
        "does not support this model's sliding window": kernel == "splash" and any(config.sliding),
        "does not support this model's attention sinks": config.attention_sinks,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"{name} {reason}: choose model.attention=xla.")


def cudnn(
    q_BTHh: Array, k_BKhS: Array, v_BKSh: Array, mask_BTS: Array, *, query_scalar: float
) -> jax.Array:
    """Computes attention by cuDNN (2205.14135), through JAX.

    cuDNN has no gradient for an odd number of queries or keys, so one is added that nothing sees.
    """
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

    Segments say what a token sees as in `attention.visible`. The compiler cannot divide a kernel,
    so `shard_map` runs each device's heads along `tp`.
    """
    options = {"query_scalar": query_scalar, "softcap": softcap, "interpret": interpret}
    run = partial(splash_on_heads, **options)
    arguments = (q_BTHh, k_BKhS, v_BKSh, segment_ids_BT, segment_ids_BS)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("tp", 1) == 1 or "tp" in mesh.manual_axes:
        return run(*arguments)
    heads, keys = PartitionSpec(None, None, "tp"), PartitionSpec(None, "tp")
    places = (heads, keys, keys, PartitionSpec(), PartitionSpec())
    divided = jax.shard_map(
        run, in_specs=places, out_specs=heads, axis_names={"tp"}, check_vma=False
    )
    return divided(*arguments)


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
        q_BTKGh, k_BKSh = with_sequences(q_BTKGh, k_BKSh, segment_ids_BT, segment_ids_BS)
        segment_ids_BT, segment_ids_BS = kernel_segments(segment_ids_BT, segment_ids_BS)
    q = filled(q_BTKGh.transpose(0, 2, 3, 1, 4), 3, T + more)
    k, v = filled(k_BKSh, 2, keys), filled(v_BKSh, 2, keys)
    ids = splash_attention.SegmentIds(
        q=filled(segment_ids_BT, 1, T + more), kv=filled(segment_ids_BS, 1, keys)
    )
    mask = splash_attention.CausalMask((T + more, keys), offset=S - T)
    block_q, block_kv = (max(b for b in (128, 256, 512) if n % b == 0) for n in (T + more, keys))
    sizes = splash_attention.BlockSizes(
        block_q=block_q,
        block_kv=block_kv,
        block_q_dkv=block_q,
        block_kv_dkv=block_kv,
        block_q_dq=block_q,
        block_kv_dq=block_kv,
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
) -> tuple[Array, Array]:
    """Returns queries and keys with eight more columns, which separate the sequences of a row.

    In the kernel a key has one segment, but all sequences of a packed row see their prompt. So the
    prompt and they have the same segment there (`kernel_segments`). The new columns lower the score
    of a key of another sequence by `APART`, and add 0 to all other scores.
    """
    T, S = segment_ids_BT.shape[1], segment_ids_BS.shape[1]
    before_BT = jnp.pad(segment_ids_BT[:, :-1], ((0, 0), (1, 0)))
    begins_BT = (segment_ids_BT > 0) & (segment_ids_BT != before_BT)
    own_BTM = jax.nn.one_hot(jnp.cumsum(begins_BT, axis=1) - 1, MOST_SEQUENCES, dtype=q_BTKGh.dtype)
    others_BSM = jnp.pad(own_BTM - 1, ((0, 0), (S - T, 0), (0, 0)))
    own = jnp.broadcast_to(own_BTM[:, :, None, None], (*q_BTKGh.shape[:-1], MOST_SEQUENCES))
    others = jnp.broadcast_to(others_BSM[:, None], (*k_BKSh.shape[:-1], MOST_SEQUENCES))
    q = jnp.concatenate([q_BTKGh, APART * own], axis=-1)
    return q, jnp.concatenate([k_BKSh, others.astype(k_BKSh.dtype)], axis=-1)


def kernel_segments(segment_ids_BT: Array, segment_ids_BS: Array) -> tuple[Array, Array]:
    """Returns the segments of queries and keys for the kernel.

    In rows with a shared prompt, it and all positive segments are 1. The others keep their number,
    without its sign.
    """
    shared_B1 = jnp.any(segment_ids_BS == SHARED_PROMPT, axis=1, keepdims=True)

    def of(ids: Array) -> Array:
        return jnp.where(shared_B1 & (ids > 0), 1, jnp.abs(ids))

    return of(segment_ids_BT), of(segment_ids_BS)
