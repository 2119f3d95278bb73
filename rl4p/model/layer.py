"""One layer of the decoder: norms, a mixer of tokens, and a feed-forward or experts."""

import math
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.distributed import collectives
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import AttentionInputs, Kernel, attend
from rl4p.model.cache import (
    AnyKeysValues,
    KeysValues,
    Latents,
    NoCache,
    QuantizedKeysValues,
    Writer,
)
from rl4p.model.decoder_config import DecoderConfig, LayerKind, options
from rl4p.model.exact_sums import in_rows, total
from rl4p.model.experts import XIELU, Experts, SharedExperts, gated
from rl4p.model.mixers.delta import GatedDelta
from rl4p.model.mixers.gated_convolution import GatedConvolution
from rl4p.model.mixers.latent import LatentAttention
from rl4p.model.mixers.mamba import Mamba
from rl4p.model.products import INIT, Projection, projected, scaled
from rl4p.model.prompt_cache import attend_with_prompt
from rl4p.model.rope import rotate


class RMSNorm(nn.Module):
    """The norm x / rms(x) * scale (1910.07467), in float32; 1 + scale if centered.

    If `without_mean` is set, x has its mean subtracted first (layer norm, 1607.06450).
    """

    epsilon: float
    centered: bool = False
    without_mean: bool = False
    exact: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        fresh = nn.initializers.zeros if self.centered else nn.initializers.ones
        scale = self.param("scale", fresh, (x.shape[-1],)).astype(jnp.float32)
        scale = scale + 1 if self.centered else scale
        rows, shape = math.prod(x.shape[:-1]), x.shape
        if self.exact:  # a loop over few rows is compiled otherwise
            x = in_rows(x)
        x32 = x.astype(jnp.float32)
        if self.without_mean:
            x32 = x32 - mean(x32, exact=self.exact)
        x32 = over_rms(x32, self.epsilon, exact=self.exact)
        # The tests refuse products of arrays of different ranks, so the scale is broadcast first.
        y = (x32 * jnp.broadcast_to(scale, x32.shape)).astype(x.dtype)
        return y[:rows].reshape(shape) if self.exact else y


def over_rms(x: Array, epsilon: float, *, exact: bool = False) -> Array:
    """Returns x / rms(x) over the last axis, in float32."""
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(mean(jnp.square(x32), exact=exact) + epsilon)


def mean(x32: Array, *, exact: bool) -> Array:
    """Returns the mean over the last axis, which keeps one element."""
    if exact:
        return total(x32) / x32.shape[-1]
    return jnp.mean(x32, axis=-1, keepdims=True)


class Layer(nn.Module):
    """A decoder layer: attention and feed-forward, each with a norm before it and a residual."""

    config: DecoderConfig
    dtype: Any
    experts_dispatch: Literal["dense", "grouped"] = "dense"
    kernel: Kernel = "xla"
    adapter_scale: float = 0.0
    sums: str | None = None  # of `product`
    exact: bool = False  # as of `Decoder`
    kind: LayerKind = LayerKind(slides=False, unrotated=False)

    def setup(self) -> None:
        c = self.config
        dense = partial(
            Projection,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=INIT,
            dot_general=partial(projected, sums=self.sums, exact=self.exact),
            adapter_scale=self.adapter_scale,
        )
        norm = partial(RMSNorm, c.norm_epsilon, c.centered_norm, c.mean_norm, self.exact)
        match self.kind.mixer:
            case "attention":
                of, shares = c.key_heads(self.kind), self.kind.shares
                self.query = dense(c.heads * of.head_width, use_bias=c.attention_bias)
                if not shares:
                    self.key = dense(of.num_kv_heads * of.head_width, use_bias=c.attention_bias)
                if not shares and not of.keys_as_values:
                    self.value = dense(of.num_kv_heads * of.head_width, use_bias=c.attention_bias)
                self.output = dense(c.width, use_bias=c.output_bias)
                if c.attention_gate:
                    self.attention_gate = dense(c.heads * c.head_width, use_bias=c.attention_bias)
                if c.attention_sinks:
                    self.sinks = self.param("sinks", INIT, (c.heads,))
                if c.query_key_norm:
                    self.query_norm, self.key_norm = norm(), None if shares else norm()
            case "latent":
                self.latent = LatentAttention(c, dense, RMSNorm, self.kernel)
            case "mamba":
                self.mamba = Mamba(options(c.mamba), c.width, c.norm_epsilon, self.dtype, dense)
            case "convolution":
                self.convolution = GatedConvolution(options(c.convolution), c.width, dense)
            case "delta":
                self.delta = GatedDelta(
                    options(c.delta), c.width, c.norm_epsilon, self.dtype, dense
                )
        mixes, feeds = self.kind.mixer != "none", self.kind.feed_forward != "none"
        if mixes and c.pre_norms:
            self.attention_norm = norm()
        if feeds and c.pre_norms and not c.parallel:
            self.feed_forward_norm = norm()
        if mixes and c.post_norms:
            self.attention_post_norm = norm()
        if feeds and c.post_norms:
            self.feed_forward_post_norm = norm()
        if self.kind.feed_forward in ("experts", "both"):
            self.experts = Experts(c, self.dtype, self.experts_dispatch)
            if c.expert_input:
                self.experts_input, self.experts_output = dense(c.expert_input), dense(c.width)
            if c.shared_width:
                self.shared = SharedExperts(c, self.dtype, dense)
        if self.kind.feed_forward == "both":
            self.router_norm, self.experts_norm = norm(), norm()
            self.gated_post_norm, self.experts_post_norm = norm(), norm()
        if self.kind.feed_forward in ("gated", "both"):
            width = c.feed_forward_width
            if self.kind.shares and c.sharing is not None:
                width = c.sharing.feed_forward_width
            if not c.ungated:
                self.gate = dense(width, use_bias=c.feed_forward_bias)
            self.up = dense(width, use_bias=c.feed_forward_bias)
            if c.activation == "xielu":
                self.xielu = XIELU()
            self.down = dense(c.width, use_bias=c.feed_forward_bias)
        if c.per_layer_width:  # G and O of `per_layer_inputs.py`
            self.input_gate, self.input_output = dense(c.per_layer_width), dense(c.width)
            self.input_norm = norm()
        if c.scaled_layers:
            self.multiplier = self.param("multiplier", nn.initializers.ones, (1,))

    def __call__(
        self,
        x_BTD: Array,
        view: AttentionInputs,
        cache: Any = None,
        write: Writer | None = None,
        shared: AnyKeysValues | None = None,
        own_BTP: Array | None = None,
        prompt: Any = None,
    ) -> tuple[Array, Any]:
        """Returns the layer's output, and its cache with the tokens of x.

        Args:
          write: writes the keys and values of x to the cache; None appends them.
          shared: the keys and values of the earlier layer, if the layer shares them.
          own_BTP: the layer's own input, if there is one (`per_layer_inputs.py`).
          prompt: the cache of the prompts that rows share (`prompt_cache.py`), if they do.
        """
        c, kind, normed = self.config, self.kind, x_BTD
        if kind.mixer == "none":
            cache = NoCache()
        else:
            normed = self.attention_norm(x_BTD) if c.pre_norms else x_BTD
            cache = shared if kind.shares else cache
            mixed, cache = self.mix(normed, view, cache, write, prompt)
            mixed = self.attention_post_norm(mixed) if c.post_norms else mixed
            x_BTD = x_BTD + scaled(mixed, c.residual_multiplier)
        if kind.feed_forward != "none":
            mesh = None if write is None else write.mesh
            fed = self.feed_forward(normed if c.parallel else x_BTD, mesh)
            fed = self.feed_forward_post_norm(fed) if c.post_norms else fed
            x_BTD = x_BTD + scaled(fed, c.residual_multiplier)
        if own_BTP is not None:
            hidden_BTP = gated(c.activation, self.input_gate(x_BTD), own_BTP)
            x_BTD = x_BTD + self.input_norm(self.input_output(hidden_BTP))
        if c.scaled_layers:
            multiplier = jax.lax.stop_gradient(self.multiplier).astype(x_BTD.dtype)
            x_BTD = x_BTD * jnp.broadcast_to(multiplier, x_BTD.shape)
        return x_BTD, NoCache() if kind.shares else cache

    def mix(
        self,
        x_BTD: Array,
        view: AttentionInputs,
        cache: Any,
        write: Writer | None,
        prompt: Any,
    ) -> tuple[Array, Any]:
        """Runs the mixer; one with a state goes on from it, and knows tokens by their segments."""
        if self.kind.mixer == "attention":
            return self.attention(x_BTD, view, cache, write, prompt)
        if self.kind.mixer == "latent":
            return self.latent(x_BTD, view, cache, write, prompt)
        y_BTD, state = getattr(self, self.kind.mixer)(x_BTD, view.segment_ids_BT, cache)
        if cache is not None:  # a loop needs the same dtypes before and after
            state = jax.tree.map(lambda new, old: new.astype(old.dtype), state, cache)
        return y_BTD, state

    def attention(
        self,
        x_BTD: Array,
        view: AttentionInputs,
        cache: AnyKeysValues | None,
        write: Writer | None,
        prompt: AnyKeysValues | None,
    ) -> tuple[Array, AnyKeysValues]:
        c, of = self.config, self.config.key_heads(self.kind)

        def heads(x: Array, norm: RMSNorm | None) -> Array:
            x = norm(x) if norm and c.query_key_norm == "whole" else x
            x = x.reshape(*x.shape[:2], -1, of.head_width)
            return norm(x) if norm and c.query_key_norm == "head" else x

        turn = partial(rotate, cos=view.cos, sin=view.sin, interleaved=c.interleaved_rope)
        query_norm, key_norm = (self.query_norm, self.key_norm) if c.query_key_norm else (None,) * 2
        q = heads(self.query(x_BTD), query_norm)
        if self.kind.shares and cache is not None:
            q = turn(*collectives.to_heads(q))
            keys = cache
        else:
            k = self.key(x_BTD)
            v = heads(k if of.keys_as_values else self.value(x_BTD), None)
            v = over_rms(v, c.norm_epsilon).astype(v.dtype) if c.normed_values else v
            q, k, v = collectives.to_heads(q, heads(k, key_norm), v)
            q, k = turn(q), turn(k)
            if query_norm and key_norm and c.query_key_norm == "rotated":
                q, k = query_norm(q), key_norm(k)
            if view.normed is not None:
                q, k = (
                    jnp.where(view.normed, over_rms(x, c.norm_epsilon).astype(x.dtype), x)
                    for x in (q, k)
                )
            keys = with_cache(k.transpose(0, 2, 3, 1), v.swapaxes(1, 2), cache, write)
        q = q if view.growth is None else (q * view.growth).astype(q.dtype)
        how = {"in_order": write is None, "kernel": self.kernel, "exact": self.exact}
        run = partial(attend, q, keys.keys_BKhS, keys.values_BKSh, scales=keys.scales, **how)
        if prompt is not None:
            run = partial(attend_with_prompt, q, keys, prompt)
        attended = run(
            view=view,
            query_scalar=c.query_scalar or of.head_width,
            softcap=c.attention_softcap,
            sinks_H=collectives.own_heads(self.sinks) if c.attention_sinks else None,
        )
        if write is not None:
            attended = write.for_products(attended)
        attended = collectives.to_columns(attended)
        if c.attention_gate:
            attended = attended * nn.sigmoid(self.attention_gate(x_BTD))
        return self.output(attended), keys

    def empty_cache(self, rows: int, slots: int, dtype: Any, int8: bool = False) -> Any:
        """Returns the cache of a layer that has processed no token.

        Args:
          int8: whether keys and values are in int8, with scales of the dtype.
        """
        c = self.config
        match self.kind.mixer:
            case "attention":
                if self.kind.shares:
                    return NoCache()
                keys = self.empty_keys(rows, slots, dtype)
                return QuantizedKeysValues.of(*keys, dtype) if int8 else keys
            case "latent":
                widths = options(c.latent).rank, options(c.latent).rotated_width
                return Latents(*(jnp.zeros((rows, slots, width), dtype) for width in widths))
            case "mamba":
                return Mamba.empty_state(options(c.mamba), rows)
            case "convolution":
                return GatedConvolution.empty_state(options(c.convolution), c.width, rows)
            case "delta":
                return GatedDelta.empty_state(options(c.delta), rows)
        return NoCache()

    def empty_keys(self, rows: int, slots: int, dtype: Any) -> KeysValues:
        """Returns keys and values that nothing was written to, such as the layer attends to."""
        of = self.config.key_heads(self.kind)
        K, h = of.num_kv_heads, of.head_width
        shapes = (rows, K, h, slots), (rows, K, slots, h)
        return KeysValues(*(jnp.zeros(shape, dtype) for shape in shapes))

    def feed_forward(self, x_BTD: Array, mesh: Mesh | None) -> Array:
        """Returns what is added to x. Of both, the router and the experts have norms of their own.

        The input of that router is norm(x) / sqrt(D).
        """
        c = self.config
        own_norm = c.pre_norms and not c.parallel
        normed = self.feed_forward_norm(x_BTD) if own_norm else x_BTD
        if self.kind.feed_forward == "experts":
            if c.expert_input:
                y_BTD = self.experts_output(self.experts(self.experts_input(normed), mesh, normed))
            else:
                y_BTD = self.experts(normed, mesh)
            return y_BTD + self.shared(normed) if c.shared_width else y_BTD
        if c.activation == "xielu":
            return self.down(self.xielu(self.up(normed)))
        gate = None if c.ungated else self.gate(normed)
        y_BTD = self.down(gated(c.activation, gate, self.up(normed)))
        if self.kind.feed_forward == "gated":
            return y_BTD
        routed = scaled(self.router_norm(x_BTD), c.width**-0.5)
        chosen = self.experts(self.experts_norm(x_BTD), mesh, routed)
        return self.gated_post_norm(y_BTD) + self.experts_post_norm(chosen)


def with_cache(
    k_BKhS: Array, v_BKSh: Array, cache: AnyKeysValues | None, write: Writer | None
) -> AnyKeysValues:
    """Returns new keys and values, behind those of a cache or written to it if there is one."""
    new: AnyKeysValues = KeysValues(k_BKhS, v_BKSh)
    if cache is None:
        return new
    if cache.scales is not None:
        new = QuantizedKeysValues.of(*new, cache.scales[0].dtype)

    def behind(old: Array, new: Array, axis: int) -> Array:
        return jnp.concatenate([old, new], axis=axis)

    return type(cache)(*map(write or behind, cache, new, cache.slot_axes))
