"""Latent attention (MLA): the keys and values of a token are products of one small vector.

DeepSeek-V2 (2405.04434), section 2.1. A token x has a latent c and a rotated key, the same for all
heads. They are all that a cache keeps. In head i, with matrices K_i, V_i and a query of two parts:

    c = norm(x W_c)    r = rotate(x W_r)           [rank], [rotated_width]
    k_i = [c K_i, r]   v_i = c V_i                 [head_width], [value_width]
    q_i = [a_i, rotate(b_i)]                       of x, or of norm(x W_q)

Attention is computed in one of two ways with equal results:

* expanded: k_i and v_i of all tokens, and then as usual;
* absorbed: a_i (c K_i)^T is (a_i K_i^T) c^T, and the weighted sum of c V_i is that of c, times V_i.
  No key or value is ever made, and decoding reads the cache alone.

The trap: the norms of the latents have an epsilon of their own, not that of the model.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.distributed import collectives
from rl4p.model.attention import MASKED, AttentionInputs, Kernel, attend
from rl4p.model.cache import Latents, Writer
from rl4p.model.decoder_config import DecoderConfig, options
from rl4p.model.prompt_cache import CachedKeys, joined
from rl4p.model.rope import YarnScaling, rotate

EPSILON = 1e-6  # of the norms of latents, in every family


class LatentAttention(nn.Module):
    """Latent attention, called as `Layer.attention` is.

    Attributes:
      dense: creates a projection to a number of features.
      norm: creates a norm with an epsilon.
    """

    config: DecoderConfig
    dense: Callable[..., Any]
    norm: Callable[..., Any]
    kernel: Kernel = "xla"

    def setup(self) -> None:
        c, latent = self.config, options(self.config.latent)
        if latent.query_rank is None:
            self.query = self.dense(c.heads * c.head_width)
        else:
            self.query_down = self.dense(latent.query_rank, use_bias=c.attention_bias)
            self.query_norm = self.norm(EPSILON)
            self.query_up = self.dense(c.heads * c.head_width)
        width = latent.rank + latent.rotated_width
        self.key_value_down = self.dense(width, use_bias=c.attention_bias)
        self.key_value_norm = self.norm(EPSILON)
        self.key_value_up = self.dense(c.heads * (latent.unrotated_width + latent.value_width))
        self.output = self.dense(c.width, use_bias=c.output_bias)

    def __call__(
        self,
        x_BTD: Array,
        view: AttentionInputs,
        cache: Latents | None = None,
        write: Writer | None = None,
        prompt: Latents | None = None,
    ) -> tuple[Array, Latents]:
        """Returns the output, and the latents of the cache and of x.

        Args:
          write: writes the latents of x to the cache; None appends them.
          prompt: the latents of the prompts that rows share, if they do.
        """
        q_BTHh, new = self.queries(x_BTD, view), self.latents(x_BTD, view)
        if cache is None:
            latents = new
        elif write is None:
            latents = Latents(*(jnp.concatenate(x, axis=1) for x in zip(cache, new, strict=True)))
        else:
            latents = Latents(*(write(x, y, 1) for x, y in zip(cache, new, strict=True)))
        if write is None:
            attended = self.expanded(q_BTHh, latents, view, in_order=True)
        else:
            S = view.mask_BTS.shape[2]
            seen = Latents(*(x[:, :S] for x in latents))
            absorbs = prompt is not None or absorbing_is_cheaper(self.config, q_BTHh.shape[1], S)
            attended = (
                self.absorbed(q_BTHh, seen, view, prompt)
                if absorbs
                else self.expanded(q_BTHh, seen, view, in_order=False)
            )
            attended = write.for_products(attended)
        return self.output(collectives.to_columns(attended)), latents

    def queries(self, x_BTD: Array, view: AttentionInputs) -> Array:
        """Returns queries [B, T, H, h], whose last part is rotated."""
        c, latent = self.config, options(self.config.latent)
        if latent.query_rank is None:
            q = self.query(x_BTD)
        else:
            q = self.query_up(self.query_norm(self.query_down(x_BTD)))
        q_BTHh = q.reshape(*x_BTD.shape[:2], c.heads, c.head_width)
        plain, turning = jnp.split(q_BTHh, [latent.unrotated_width], axis=-1)
        q_BTHh = jnp.concatenate([plain, self.turned(turning, view)], axis=-1)
        if view.growth is None:
            return q_BTHh
        return (q_BTHh * collectives.own(view.growth)).astype(q_BTHh.dtype)

    def latents(self, x_BTD: Array, view: AttentionInputs) -> Latents:
        rank = options(self.config.latent).rank
        latents, keys = jnp.split(self.key_value_down(x_BTD), [rank], axis=-1)
        keys = self.turned(keys[:, :, None], view)[:, :, 0]
        return Latents(self.key_value_norm(latents), keys)

    def turned(self, x: Array, view: AttentionInputs) -> Array:
        """Rotates own columns, which are not yet exchanged for heads."""
        cos, sin = (collectives.own(x) for x in (view.cos, view.sin))
        return rotate(x, cos, sin, interleaved=self.config.interleaved_rope)

    def expanded(
        self, q_BTHh: Array, latents: Latents, view: AttentionInputs, *, in_order: bool
    ) -> Array:
        """Attends to keys and values, expanded from the latents, in the dtype of the queries."""
        c, latent = self.config, options(self.config.latent)
        latents_BSR, keys_BSr = (x.astype(q_BTHh.dtype) for x in latents)
        up = self.key_value_up(latents_BSR).reshape(*latents_BSR.shape[:2], c.heads, -1)
        k, v_BSHv = jnp.split(up, [latent.unrotated_width], axis=-1)
        turned = jnp.broadcast_to(keys_BSr[:, :, None], (*k.shape[:3], latent.rotated_width))
        k_BSHh = jnp.concatenate([k, turned], axis=-1)
        q_BTHh, k_BSHh, v_BSHv = collectives.to_heads(q_BTHh, k_BSHh, v_BSHv)
        return attend(
            q_BTHh,
            k_BSHh.transpose(0, 2, 3, 1),
            v_BSHv.swapaxes(1, 2),
            view,
            query_scalar=score_scale(c) ** -2,
            softcap=None,
            in_order=in_order,
            kernel=self.kernel,
        )

    def absorbed(
        self, q_BTHh: Array, latents: Latents, view: AttentionInputs, prompt: Latents | None
    ) -> Array:
        """Attends to the latents, in the dtype of the cache; the softmax is in float32."""
        (latents_BSR, keys_BSr), dtype = latents, latents.latents_BSR.dtype
        scaled = q_BTHh * score_scale(self.config)
        plain, turned = jnp.split(scaled, [options(self.config.latent).unrotated_width], axis=-1)
        q_BTHR = self.times_keys(plain).astype(dtype)
        if prompt is not None:
            queries = [x.astype(dtype)[:, :, None] for x in (q_BTHR, turned)]  # one KV head
            seen_BT1HR = joined(queries, as_keys(latents), as_keys(prompt), view)
            out_BTHv = self.times_values(seen_BT1HR[:, :, 0].astype(q_BTHh.dtype))
            return out_BTHv.reshape(*q_BTHh.shape[:2], -1)
        scores_BHTS = jnp.einsum("BTHR,BSR->BHTS", q_BTHR, latents_BSR).astype(jnp.float32)
        turned_BHTS = jnp.einsum("BTHr,BSr->BHTS", turned.astype(dtype), keys_BSr)
        scores_BHTS += turned_BHTS.astype(jnp.float32)
        weights_BHTS = jax.nn.softmax(jnp.where(view.mask_BTS[:, None], scores_BHTS, MASKED))
        seen_BTHR = jnp.einsum("BHTS,BSR->BTHR", weights_BHTS.astype(dtype), latents_BSR)
        out_BTHv = self.times_values(seen_BTHR.astype(q_BTHh.dtype))
        return out_BTHv.reshape(*q_BTHh.shape[:2], -1)

    def times_keys(self, q_BTHn: Array) -> Array:
        """Returns a_i K_i^T [B, T, H, rank]; adapters of K_i stay factors of it."""
        total = jnp.zeros((), q_BTHn.dtype)
        for *down, up in self.key_value_up.factors():
            keys_RHn, _ = self.of_heads(up)
            x = jnp.einsum("BTHn,RHn->BTHR", q_BTHn, keys_RHn)
            for matrix_RF in down:
                x = jnp.einsum("BTHF,RF->BTHR", x, matrix_RF)
            total += x
        return total

    def times_values(self, x_BTHR: Array) -> Array:
        """Returns weighted sums of latents, times V_i: [B, T, H, value_width]."""
        total = jnp.zeros((), x_BTHR.dtype)
        for *down, up in self.key_value_up.factors():
            x = x_BTHR
            for matrix_RF in down:
                x = jnp.einsum("BTHR,RF->BTHF", x, matrix_RF)
            _, values_RHv = self.of_heads(up)
            total += jnp.einsum("BTHR,RHv->BTHv", x, values_RHv)
        return total

    def of_heads(self, up_RF: Array) -> Sequence[Array]:
        """Returns the parts of keys and of values: [rank, H, unrotated_width], [rank, H, v]."""
        up_RHw = up_RF.reshape(up_RF.shape[0], self.config.heads, -1)
        return jnp.split(up_RHw, [options(self.config.latent).unrotated_width], axis=-1)


def as_keys(latents: Latents) -> CachedKeys:
    """Returns the factors of scores and the values, as of one KV head."""
    return CachedKeys([x.swapaxes(1, 2)[:, None] for x in latents], latents.latents_BSR[:, None])


def score_scale(c: DecoderConfig) -> float:
    """Returns what scores are multiplied by: 1 / sqrt(h), grown with the context by YaRN."""
    growth = 1.0
    if isinstance(c.rope_scaling, YarnScaling):
        growth += 0.1 * options(c.latent).score_growth * math.log(max(c.rope_scaling.factor, 1.0))
    return c.head_width**-0.5 * growth**2


def absorbing_is_cheaper(c: DecoderConfig, T: int, S: int) -> bool:
    """Returns whether absorbed attention of T queries to S slots has fewer products."""
    latent = options(c.latent)
    up = latent.rank * (latent.unrotated_width + latent.value_width)
    absorbed = T * up + T * S * (2 * latent.rank + latent.rotated_width)
    return absorbed < S * up + T * S * (c.head_width + latent.value_width)
