"""A decoder-only transformer: Flax layers, stacked over depth, with explicit parameters.

The parameters of all layers are stacked along a leading axis L. Training scans over that axis;
decoding slices it once, outside its loop, and unrolls the layers, since a scanned cache would be
rewritten whole at every token.
"""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rl4p.types import Array, Params

MASKED = -1e30  # finite: a row without any visible key must not become nan


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The shape of a decoder.

    Attributes:
      family: the model type whose options these are; an export is written in its names.
    """

    vocabulary: int  # V
    width: int  # D
    layers: int  # L
    heads: int  # H
    key_value_heads: int  # K
    head_width: int  # h
    feed_forward_width: int
    max_positions: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    tied_embedding: bool = True
    attention_bias: bool = True
    family: str = "qwen2"


def rotate(x: Array, positions_BT: Array, theta: float) -> Array:
    """Rotary position embedding (2104.09864), halves convention, on [B, T, heads, h]."""
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions_BT[:, :, None, None].astype(jnp.float32) * frequency[None, None, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)


def attend(q_BTHh: Array, k_BSKh: Array, v_BSKh: Array, mask_BTS: Array) -> Array:
    """Softmax attention, H / K query heads to each key head; the softmax is in float32."""
    B, T, H, h = q_BTHh.shape
    K = k_BSKh.shape[2]
    q_BTKGh = q_BTHh.reshape(B, T, K, H // K, h) * h**-0.5
    scores = jnp.einsum("BTKGh,BSKh->BKGTS", q_BTKGh, k_BSKh).astype(jnp.float32)
    scores = jnp.where(mask_BTS[:, None, None], scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BSKh.dtype)
    return jnp.einsum("BKGTS,BSKh->BTKGh", weights, v_BSKh).reshape(B, T, H * h)


class RMSNorm(nn.Module):
    """x / rms(x) * scale (1910.07467), in float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        return (x32 * jnp.broadcast_to(scale, x32.shape).astype(jnp.float32)).astype(x.dtype)


class Layer(nn.Module):
    """Attention and feed-forward, each after a norm and around a residual."""

    config: DecoderConfig
    dtype: Any

    def setup(self) -> None:
        c = self.config

        def dense(features: int, bias: bool = False) -> nn.Dense:
            init = nn.initializers.normal(0.02)
            return nn.Dense(features, use_bias=bias, dtype=self.dtype, kernel_init=init)

        self.attention_norm = RMSNorm(c.norm_epsilon)
        self.query = dense(c.heads * c.head_width, c.attention_bias)
        self.key = dense(c.key_value_heads * c.head_width, c.attention_bias)
        self.value = dense(c.key_value_heads * c.head_width, c.attention_bias)
        self.output = dense(c.width)
        self.feed_forward_norm = RMSNorm(c.norm_epsilon)
        self.gate = dense(c.feed_forward_width)
        self.up = dense(c.feed_forward_width)
        self.down = dense(c.width)

    def __call__(
        self,
        x_BTD: Array,
        positions_BT: Array,
        mask_BTS: Array,
        cache: tuple[Array, Array] | None = None,
        slot: Array | int = 0,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Returns the layer's output and its keys and values: those of x, or the whole cache."""
        c = self.config
        B, T, _ = x_BTD.shape
        normed = self.attention_norm(x_BTD)
        q = rotate(
            self.query(normed).reshape(B, T, c.heads, c.head_width), positions_BT, c.rope_theta
        )
        k = rotate(
            self.key(normed).reshape(B, T, c.key_value_heads, c.head_width),
            positions_BT,
            c.rope_theta,
        )
        v = self.value(normed).reshape(B, T, c.key_value_heads, c.head_width)
        if cache is not None:
            k = jax.lax.dynamic_update_slice_in_dim(cache[0], k, slot, axis=1)
            v = jax.lax.dynamic_update_slice_in_dim(cache[1], v, slot, axis=1)
        x_BTD = x_BTD + self.output(attend(q, k, v, mask_BTS))
        normed = self.feed_forward_norm(x_BTD)
        return x_BTD + self.down(nn.silu(self.gate(normed)) * self.up(normed)), (k, v)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Cache:
    """Keys and values of all layers, with what tells which slots a token may see."""

    layers: tuple[tuple[Array, Array], ...]  # L of [B, S, K, h] twice
    positions_BS: Array
    segment_ids_BS: Array  # 0 on slots not written


def visible(
    query_positions_BT: Array,
    query_segments_BT: Array,
    key_positions_BS: Array,
    key_segments_BS: Array,
) -> Array:
    """The attention mask [B, T, S]: the same segment, not padding, and not the future."""
    same = query_segments_BT[:, :, None] == key_segments_BS[:, None, :]
    past = query_positions_BT[:, :, None] >= key_positions_BS[:, None, :]
    return same & past & (key_segments_BS[:, None, :] > 0)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The functions of a decoder; it holds no arrays.

    Attributes:
      config: the shape.
      dtype: of activations, "float32" or "bfloat16"; logits are float32 always.
      remat: recompute each layer in the backward pass instead of keeping its activations.
    """

    config: DecoderConfig
    dtype: str = "float32"
    remat: bool = False

    @property
    def layer(self) -> Layer:
        return Layer(self.config, jnp.dtype(self.dtype), parent=None)

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters: normal(0, 0.02), residual outputs scaled by 1/sqrt(2 L)."""
        c = self.config
        key_embed, key_head, key_layers = jax.random.split(key, 3)
        x_BTD, positions_BT = jnp.zeros((1, 1, c.width), self.dtype), jnp.zeros((1, 1), jnp.int32)
        mask_BTS = jnp.ones((1, 1, 1), bool)

        def init_layer(layer_key: jax.Array) -> Params:
            return self.layer.init(layer_key, x_BTD, positions_BT, mask_BTS)["params"]

        layers = jax.vmap(init_layer)(jax.random.split(key_layers, c.layers))
        for name in ("output", "down"):
            layers[name]["kernel"] = layers[name]["kernel"] * (2 * c.layers) ** -0.5
        params = {
            "embedding": 0.02 * jax.random.normal(key_embed, (c.vocabulary, c.width)),
            "layers": layers,
            "norm": {"scale": jnp.ones((c.width,))},
        }
        if not c.tied_embedding:
            params["head"] = 0.02 * jax.random.normal(key_head, (c.vocabulary, c.width))
        return params

    def embed(self, params: Params, tokens_BT: Array) -> Array:
        # Token ids are checked where they enter (the tokenizer against the vocabulary): indexing
        # here would clamp an id outside it silently.
        return params["embedding"].astype(self.dtype)[tokens_BT]

    def hidden(
        self, params: Params, tokens_BT: Array, positions_BT: Array, segment_ids_BT: Array
    ) -> Array:
        """Final normed activations [B, T, D] of whole sequences (no cache)."""
        mask_BTT = visible(positions_BT, segment_ids_BT, positions_BT, segment_ids_BT)

        def run_layer(x_BTD: Array, layer: Params) -> tuple[Array, None]:
            return self.layer.apply({"params": layer}, x_BTD, positions_BT, mask_BTT)[0], None

        if self.remat:
            run_layer = jax.checkpoint(run_layer, prevent_cse=False)
        x_BTD, _ = jax.lax.scan(run_layer, self.embed(params, tokens_BT), params["layers"])
        return self.final_norm(params, x_BTD)

    def final_norm(self, params: Params, x_BTD: Array) -> Array:
        norm: Any = RMSNorm(self.config.norm_epsilon, parent=None)
        return norm.apply({"params": params["norm"]}, x_BTD)

    def logits(self, params: Params, hidden: Array) -> Array:
        """float32 [..., V] from [..., D]."""
        head_VD = params["embedding" if self.config.tied_embedding else "head"]
        return jnp.einsum(
            "...D,VD->...V",
            hidden,
            head_VD.astype(hidden.dtype),
            preferred_element_type=jnp.float32,
        )

    def empty_cache(self, rows: int, slots: int) -> Cache:
        c = self.config
        shape = (rows, slots, c.key_value_heads, c.head_width)
        zeros = jnp.zeros((rows, slots), jnp.int32)
        layers = tuple(
            (jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)) for _ in range(c.layers)
        )
        return Cache(layers=layers, positions_BS=zeros, segment_ids_BS=zeros)

    def unstack(self, params: Params) -> tuple[Params, ...]:
        """The layers' parameters one by one; do it once, outside a decoding loop."""
        return tuple(
            jax.tree.map(lambda x_L, i=i: x_L[i], params["layers"])
            for i in range(self.config.layers)
        )

    def extend(
        self,
        params: Params,
        layers: tuple[Params, ...],
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        cache: Cache,
        slot: Array | int,
    ) -> tuple[Array, Cache]:
        """Runs T more tokens of each row, writing cache slots [slot, slot + T).

        Args:
          layers: `unstack(params)`.

        Returns:
          Final normed activations [B, T, D] and the cache.
        """
        update = jax.lax.dynamic_update_slice_in_dim
        positions_BS = update(cache.positions_BS, positions_BT, slot, axis=1)
        segment_ids_BS = update(cache.segment_ids_BS, segment_ids_BT, slot, axis=1)
        mask_BTS = visible(positions_BT, segment_ids_BT, positions_BS, segment_ids_BS)
        x_BTD, written = self.embed(params, tokens_BT), []
        for layer, layer_cache in zip(layers, cache.layers, strict=True):
            x_BTD, layer_cache = self.layer.apply(
                {"params": layer}, x_BTD, positions_BT, mask_BTS, layer_cache, slot
            )
            written.append(layer_cache)
        cache = Cache(
            layers=tuple(written), positions_BS=positions_BS, segment_ids_BS=segment_ids_BS
        )
        return self.final_norm(params, x_BTD), cache
