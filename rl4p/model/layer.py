"""One layer of the decoder: norms, attention, and a feed-forward or experts."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rl4p.distributed import columns
from rl4p.model.attention import AttentionInputs, attend
from rl4p.model.cache import Writer
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.kernels import Kernel
from rl4p.model.nf4 import NF4Kernel
from rl4p.model.rope import rotate
from rl4p.types import Array

ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": partial(nn.gelu, approximate=True)}
LIMIT, SLOPE = 7.0, 1.702  # of `clamped_swish`
INIT = nn.initializers.normal(0.02)
PRODUCT = "product of a projection"  # checkpoint policies do not see that `product` is a dot


def gated(activation: str, gate: Array, up: Array) -> jax.Array:
    """Returns the product of a gated feed-forward (`DecoderConfig.activation`)."""
    if activation == "clamped_swish":
        gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
        return (gate * nn.sigmoid(SLOPE * gate)) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


class RMSNorm(nn.Module):
    """The norm x / rms(x) * scale (1910.07467), in float32; 1 + scale if centered."""

    epsilon: float
    centered: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        fresh = nn.initializers.zeros if self.centered else nn.initializers.ones
        scale = self.param("scale", fresh, (x.shape[-1],)).astype(jnp.float32)
        scale = scale + 1 if self.centered else scale
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        # The tests refuse products of arrays of different ranks, so the scale is broadcast first.
        return (x32 * jnp.broadcast_to(scale, x32.shape)).astype(x.dtype)


class Experts(nn.Module):
    """A mixture of gated feed-forwards, of which each token uses a few (2101.03961, 2505.09388).

        p = softmax(x R); y = sum over the chosen e of p_e (act(x G_e) * x U_e) D_e

    If `normalized_experts` is set, p of the chosen experts is divided by its sum. If `expert_bias`
    is set, each of the four products has a bias. The dispatch changes results only by rounding:

    * dense: every expert runs on every token, with weight 0 for experts that were not chosen.
    * grouped: pairs of a token and its chosen expert are sorted by expert, and each expert runs on
      its own range (`ragged_dot`). Experts have no capacity limit, so no pair is dropped. This
      saves work only where `ragged_dot` is native: on a CPU every expert runs on every pair. In
      sampling, several devices gather all rows of the batch to sort the pairs.
    """

    config: DecoderConfig
    dtype: Any
    dispatch: Literal["dense", "grouped"] = "dense"

    @nn.compact
    def __call__(self, x_BTD: Array) -> Array:
        c = self.config
        E, D, F = c.experts, c.width, c.feed_forward_width
        router_DE, *kernels = (
            self.param(name, INIT, shape).astype(self.dtype)
            for name, shape in (
                ("router", (D, E)),
                ("gate", (E, D, F)),
                ("up", (E, D, F)),
                ("down", (E, F, D)),
            )
        )
        router_bias_E, *biases = (
            self.param(name, nn.initializers.zeros, shape).astype(self.dtype)
            if c.expert_bias
            else None
            for name, shape in (
                ("router_bias", (E,)),
                ("gate_bias", (E, F)),
                ("up_bias", (E, F)),
                ("down_bias", (E, D)),
            )
        )
        scores_BTE = plus(jnp.einsum("BTD,DE->BTE", x_BTD, router_DE), router_bias_E)
        scores_BTE = scores_BTE.astype(jnp.float32)
        weights_BTC, chosen_BTC = jax.lax.top_k(jax.nn.softmax(scores_BTE), c.chosen_experts)
        if c.normalized_experts:
            weights_BTC = weights_BTC / jnp.sum(weights_BTC, axis=-1, keepdims=True)
        run = self.grouped if self.dispatch == "grouped" else self.dense
        return run(x_BTD, weights_BTC.astype(self.dtype), chosen_BTC, kernels, biases)

    def dense(
        self,
        x_BTD: Array,
        weights_BTC: Array,
        chosen_BTC: Array,
        kernels: Sequence[Array],
        biases: Sequence[Array | None],
    ) -> Array:
        (gate_EDF, up_EDF, down_EFD), (gate_bias_EF, up_bias_EF, down_bias_ED) = kernels, biases
        chosen_BTCE = jax.nn.one_hot(chosen_BTC, self.config.experts, dtype=self.dtype)
        weights_BTE = jnp.einsum("BTC,BTCE->BTE", weights_BTC, chosen_BTCE)
        gate_BTEF = plus(jnp.einsum("BTD,EDF->BTEF", x_BTD, gate_EDF), gate_bias_EF)
        up_BTEF = plus(jnp.einsum("BTD,EDF->BTEF", x_BTD, up_EDF), up_bias_EF)
        hidden_BTEF = gated(self.config.activation, gate_BTEF, up_BTEF)
        y_BTD = jnp.einsum("BTEF,EFD->BTD", hidden_BTEF * weights_BTE[..., None], down_EFD)
        if down_bias_ED is None:
            return y_BTD
        return y_BTD + jnp.einsum("BTE,ED->BTD", weights_BTE, down_bias_ED)

    def grouped(
        self,
        x_BTD: Array,
        weights_BTC: Array,
        chosen_BTC: Array,
        kernels: Sequence[jax.Array],
        biases: Sequence[Array | None],
    ) -> Array:
        """Runs N = B x T x C sorted pairs; sorting permutes, so no gradient adds atomically."""
        experts_N = chosen_BTC.reshape(-1)
        sorted_N = jnp.argsort(experts_N)
        unsorted_N = jnp.argsort(sorted_N)
        sizes_E = jnp.bincount(experts_N, length=self.config.experts)
        # As a product, whose gradient adds in a fixed order.
        which_NE = jax.nn.one_hot(experts_N[sorted_N], self.config.experts, dtype=self.dtype)
        gate_bias_NF, up_bias_NF, down_bias_ND = (
            None if bias is None else which_NE @ bias for bias in biases
        )
        gate_EDF, up_EDF, down_EFD = kernels
        x_BTCD = jnp.broadcast_to(x_BTD[:, :, None], (*chosen_BTC.shape, x_BTD.shape[-1]))
        x_ND = permuted(x_BTCD.reshape(-1, x_BTD.shape[-1]), sorted_N)
        gate_NF = plus(jax.lax.ragged_dot(x_ND, gate_EDF, sizes_E), gate_bias_NF)
        up_NF = plus(jax.lax.ragged_dot(x_ND, up_EDF, sizes_E), up_bias_NF)
        weights_N1 = permuted(weights_BTC.reshape(-1), sorted_N)[:, None]
        hidden_NF = gated(self.config.activation, gate_NF, up_NF) * weights_N1
        bias_ND = None if down_bias_ND is None else weights_N1 * down_bias_ND
        y_ND = plus(jax.lax.ragged_dot(hidden_NF, down_EFD, sizes_E), bias_ND)
        return jnp.sum(permuted(y_ND, unsorted_N).reshape(x_BTCD.shape), axis=2)


def plus(x: Array, bias: Array | None) -> jax.Array:
    """Returns x with a bias of its last axes, if there is one."""
    return jnp.asarray(x if bias is None else x + jnp.broadcast_to(bias, x.shape))


def permuted(x: Array, order_N: Array) -> jax.Array:
    return jnp.asarray(x).at[order_N].get(unique_indices=True, mode="promise_in_bounds")


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(x: Array, kernel_DF: Array, sums: str | None = None) -> Array:
    """Returns the product x W over the last axis of x.

    The custom derivative computes dW = x^T dy as one product over all tokens. JAX would transpose
    (dy)^T x instead, for which a CPU copies dy, and everything fused into it, transposed.

    Args:
      sums: the dtype in which this product and those of its derivative are added up before they
        are rounded to the dtype of x; None leaves it to the compiler.
    """
    return rounded("...D,DF->...F", x, kernel_DF, sums)


def product_forward(
    x: Array, kernel_DF: Array, sums: str | None
) -> tuple[Array, tuple[Array, Array]]:
    return product(x, kernel_DF, sums), (x, kernel_DF)


def product_backward(
    sums: str | None, saved: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, kernel_DF = saved
    dx = rounded("...F,DF->...D", dy, kernel_DF, sums)
    x_ND, dy_NF = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dx, rounded("ND,NF->DF", x_ND, dy_NF, sums)


product.defvjp(product_forward, product_backward)


def rounded(axes: str, x: Array, y: Array, sums: str | None) -> Array:
    """Returns an einsum, added up in a dtype of its own and rounded once."""
    return jnp.einsum(axes, x, y, preferred_element_type=sums).astype(x.dtype)


def projected(x: Array, kernel_DF: Array, *_: Any, sums: str | None, **__: Any) -> Array:
    """Returns `product`, named for checkpoint policies; it is called as `lax.dot_general` is."""
    return checkpoint_name(product(x, kernel_DF, sums), PRODUCT)


class Projection(nn.Dense):
    """The projection x W + b; plus scale (x A) B if the parameters adapt W (`lora.py`)."""

    dot_general: Any = partial(projected, sums=None)
    adapter_scale: float = 0.0

    def __call__(self, inputs: Array) -> Array:
        if self.has_variable("params", "kernel") and isinstance(
            kernel := self.get_variable("params", "kernel"), NF4Kernel
        ):
            bias = self.get_variable("params", "bias") if self.use_bias else None
            y = self.dot_general(inputs.astype(self.dtype), kernel.astype(self.dtype))
            y = plus(y, None if bias is None else bias.astype(self.dtype))
        else:
            y = super().__call__(inputs)
        if not self.has_variable("params", "lora_a"):
            return y
        down, up = (
            self.get_variable("params", name).astype(self.dtype) for name in ("lora_a", "lora_b")
        )
        return y + self.adapter_scale * ((inputs.astype(self.dtype) @ down) @ up)


class Layer(nn.Module):
    """A decoder layer: attention and feed-forward, each with a norm before it and a residual."""

    config: DecoderConfig
    dtype: Any
    experts_dispatch: Literal["dense", "grouped"] = "dense"
    kernel: Kernel = "xla"
    adapter_scale: float = 0.0
    sums: str | None = None  # of `product`

    def setup(self) -> None:
        c = self.config

        def dense(features: int, bias: bool = False) -> Projection:
            return Projection(
                features,
                use_bias=bias,
                dtype=self.dtype,
                kernel_init=INIT,
                dot_general=partial(projected, sums=self.sums),
                adapter_scale=self.adapter_scale,
            )

        norm = partial(RMSNorm, c.norm_epsilon, c.centered_norm)
        self.query = dense(c.heads * c.head_width, c.attention_bias)
        self.key = dense(c.num_kv_heads * c.head_width, c.attention_bias)
        self.value = dense(c.num_kv_heads * c.head_width, c.attention_bias)
        self.output = dense(c.width, c.output_bias)
        if c.attention_sinks:
            self.sinks = self.param("sinks", INIT, (c.heads,))
        if c.pre_norms:
            self.attention_norm, self.feed_forward_norm = norm(), norm()
        if c.query_key_norm:
            self.query_norm, self.key_norm = norm(), norm()
        if c.post_norms:
            self.attention_post_norm, self.feed_forward_post_norm = norm(), norm()
        if c.experts:
            self.experts = Experts(c, self.dtype, self.experts_dispatch)
        else:
            self.gate = dense(c.feed_forward_width)
            self.up = dense(c.feed_forward_width)
            self.down = dense(c.width)

    def __call__(
        self,
        x_BTD: Array,
        view: AttentionInputs,
        cache: tuple[Array, Array] | None = None,
        write: Writer | None = None,
    ) -> tuple[Array, tuple[Array, Array]]:
        """Returns the layer's output, and the keys and values of the cache and of x.

        Args:
          write: writes the keys and values of x to the cache; None appends them.
        """
        pre_norms, post_norms = self.config.pre_norms, self.config.post_norms
        normed = self.attention_norm(x_BTD) if pre_norms else x_BTD
        attended, cache = self.attention(normed, view, cache, write)
        x_BTD = x_BTD + (self.attention_post_norm(attended) if post_norms else attended)
        fed = self.feed_forward(self.feed_forward_norm(x_BTD) if pre_norms else x_BTD)
        return x_BTD + (self.feed_forward_post_norm(fed) if post_norms else fed), cache

    def attention(
        self,
        x_BTD: Array,
        view: AttentionInputs,
        cache: tuple[Array, Array] | None,
        write: Writer | None,
    ) -> tuple[Array, tuple[Array, Array]]:
        c = self.config
        B, T, _ = x_BTD.shape
        q, k = self.query(x_BTD), self.key(x_BTD)
        if c.query_key_norm == "whole":
            q, k = self.query_norm(q), self.key_norm(k)
        q = q.reshape(B, T, c.heads, c.head_width)
        k = k.reshape(B, T, c.num_kv_heads, c.head_width)
        v = self.value(x_BTD).reshape(B, T, c.num_kv_heads, c.head_width)
        if c.query_key_norm == "head":
            q, k = self.query_norm(q), self.key_norm(k)
        q, k, v = columns.to_heads(q, k, v)
        q, k = (rotate(x, view.cos, view.sin, interleaved=c.interleaved_rope) for x in (q, k))
        k_BKhS, v_BKSh = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
        if cache is not None:
            if write is None:
                k_BKhS = jnp.concatenate([cache[0], k_BKhS], axis=3)
                v_BKSh = jnp.concatenate([cache[1], v_BKSh], axis=2)
            else:
                k_BKhS = write(cache[0], k_BKhS, 3)
                v_BKSh = write(cache[1], v_BKSh, 2)
        attended = attend(
            q,
            k_BKhS,
            v_BKSh,
            view,
            query_scalar=c.query_scalar or c.head_width,
            softcap=c.attention_softcap,
            in_order=write is None,
            sinks_H=columns.own_heads(self.sinks) if c.attention_sinks else None,
            kernel=self.kernel,
        )
        if write is not None:
            attended = write.for_products(attended)
        return self.output(columns.to_columns(attended)), (k_BKhS, v_BKSh)

    def feed_forward(self, x_BTD: Array) -> Array:
        if self.config.experts:
            return self.experts(x_BTD)
        return self.down(gated(self.config.activation, self.gate(x_BTD), self.up(x_BTD)))
