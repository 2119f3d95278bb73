"""A decoder-only transformer: Flax layers, stacked over depth, with explicit parameters.

The parameters of all layers are stacked along a leading axis L. Training scans over that axis, or
unrolls it; decoding slices it once, outside its loop, and always unrolls, since a scanned cache
would be rewritten whole at every token.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp

from rl4p.distributed.partition import GATHERED, gather, gathering
from rl4p.errors import InputError
from rl4p.model.attention import View, softcapped, views
from rl4p.model.cache import Before, Cache, write
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.kernels import Kernel
from rl4p.model.layer import PRODUCT, Layer, RMSNorm
from rl4p.model.lora import LoRA
from rl4p.types import Array, Params

__all__ = ["Before", "Cache", "Decoder", "DecoderConfig", "Remat"]

Remat = Literal["none", "elementwise", "layer"]

PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(PRODUCT)
)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The functions of a decoder; it holds no arrays.

    Attributes:
      config: the shape.
      dtype: of activations, "float32" or "bfloat16"; logits are float32 always.
      remat: what the backward pass computes again instead of keeping it: `none`, `elementwise` (all
        but matrix products) or `layer`.
      unroll: runs the layers of training one after the other in place of a scan over them, whose
        slices and stacks cost a CPU time: quicker there, and longer to compile. Only where `remat`
        is `none`: with no loop around it, a CPU's compiler keeps what it should compute again.
      experts: how tokens meet their experts (`layer.Experts`), where there are any.
      attention: the kernel over whole rows (`kernels.py`).
      lora: of the adapters, where parameters hold some.

    Raises:
      InputError: `unroll` with another `remat`.
    """

    config: DecoderConfig
    dtype: str = "float32"
    remat: Remat = "elementwise"
    unroll: bool = False
    experts: Literal["dense", "grouped"] = "dense"
    attention: Kernel = "xla"
    lora: LoRA = field(default_factory=LoRA)

    def __post_init__(self) -> None:
        if self.unroll and self.remat != "none":
            raise InputError(
                f"model.unroll=true keeps all that model.remat={self.remat} would compute again: "
                "say model.remat=none with it, or leave it out."
            )

    @property
    def layer(self) -> Layer:
        dtype = jnp.dtype(self.dtype)
        return Layer(self.config, dtype, self.experts, self.attention, self.lora.scale, parent=None)

    def init(self, key: Array) -> Params:
        """Fresh float32 parameters: normal(0, 0.02), residual outputs scaled by 1/sqrt(2 L)."""
        c = self.config
        key_embed, key_head, key_layers = jax.random.split(key, 3)
        x_BTD, angle = jnp.zeros((1, 1, c.width), self.dtype), jnp.zeros((1, 1, 1, 1))
        ones = jnp.ones((1, 1), jnp.int32)
        view = View(angle, angle, jnp.ones((1, 1, 1), bool), ones, ones)

        def init_layer(layer_key: jax.Array) -> Params:
            return self.layer.init(layer_key, x_BTD, view)["params"]

        layers = jax.vmap(init_layer)(jax.random.split(key_layers, c.layers))
        for parent, name in (
            (layers["output"], "kernel"),
            (layers["experts"], "down") if c.experts else (layers["down"], "kernel"),
        ):
            parent[name] = parent[name] * (2 * c.layers) ** -0.5
        fresh = jnp.zeros if c.centered_norm else jnp.ones
        params = {
            "embedding": 0.02 * jax.random.normal(key_embed, (c.vocabulary, c.width)),
            "layers": layers,
            "norm": {"scale": fresh((c.width,))},
        }
        if c.labels:
            params["score"] = 0.02 * jax.random.normal(key_head, (c.labels, c.width))
        elif not c.tied_embedding:
            params["head"] = 0.02 * jax.random.normal(key_head, (c.vocabulary, c.width))
        return params

    def embed(self, params: Params, tokens_BT: Array) -> Array:
        # Token ids are checked where they enter (the tokenizer against the vocabulary): indexing
        # here would clamp an id outside it silently.
        x_BTD = params["embedding"].astype(self.dtype)[tokens_BT]
        if self.config.scaled_embedding:  # the factor is rounded first, as Gemma was trained
            x_BTD = x_BTD * jnp.asarray(self.config.width**0.5, self.dtype)
        return x_BTD

    def hidden(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        before: Before | None = None,
    ) -> Array:
        """Final normed activations [B, T, D] of whole sequences, or of what follows a beginning."""
        tokens = tokens_BT, positions_BT, segment_ids_BT
        return self.final_norm(params, self.run_layers(params, *tokens, before=before)[0])

    def keys_and_values(
        self, params: Params, tokens_BT: Array, positions_BT: Array, segment_ids_BT: Array
    ) -> tuple[Array, Array]:
        """Those of all layers, [L, B, K, h, T] and [L, B, K, T, h], of whole sequences."""
        return self.run_layers(params, tokens_BT, positions_BT, segment_ids_BT, keep=True)[1]

    def run_layers(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        *,
        before: Before | None = None,
        keep: bool = False,
    ) -> tuple[Array, Any]:
        """Activations [B, T, D], and the keys and values of all layers, if they are to be kept."""
        c, keys = self.config, (positions_BT, segment_ids_BT)
        if before is not None:
            keys = tuple(
                jnp.concatenate(pair, axis=1)
                for pair in zip((before.positions_BS, before.segment_ids_BS), keys, strict=True)
            )
        seen = views(c, positions_BT, segment_ids_BT, *keys)

        def run_layer(x_BTD: Array, scanned: tuple[Params, Array | None, Any]) -> tuple[Array, Any]:
            layer, slides, cache = scanned
            layer = gather(layer, self.dtype)
            view = seen.of(any(c.sliding)) if slides is None else seen.choose(slides)
            x_BTD, cache = self.layer.apply({"params": layer}, x_BTD, view, cache)
            return x_BTD, cache if keep else None

        saved = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
        if self.remat != "none":
            saved = PRODUCTS if self.remat == "elementwise" else None
        if self.remat != "none" or gathering():
            # Only a loop around it keeps the compiler from finding what is computed again.
            run_layer = jax.checkpoint(run_layer, prevent_cse=self.unroll, policy=saved)
        slides_L = jnp.asarray(c.sliding) if c.mixed else None
        caches = None if before is None else before.layers
        scanned = params["layers"], slides_L, caches
        return jax.lax.scan(run_layer, self.embed(params, tokens_BT), scanned, unroll=self.unroll)

    def final_norm(self, params: Params, x_BTD: Array) -> Array:
        norm: Any = RMSNorm(self.config.norm_epsilon, self.config.centered_norm, parent=None)
        return norm.apply({"params": params["norm"]}, x_BTD)

    def logits(self, params: Params, hidden: Array) -> Array:
        """float32 [..., V] from [..., D]."""
        head_VD = params["embedding" if self.config.tied_embedding else "head"]
        logits = jnp.einsum(
            "...D,VD->...V",
            hidden,
            head_VD.astype(hidden.dtype),
            preferred_element_type=jnp.float32,
        )
        return softcapped(logits, self.config.logits_softcap)

    def empty_cache(self, rows: int, slots: int) -> Cache:
        c = self.config
        heads, h = c.key_value_heads, c.head_width
        zeros = jnp.zeros((rows, slots), jnp.int32)
        keys, values = (rows, heads, h, slots), (rows, heads, slots, h)
        layers = tuple(
            (jnp.zeros(keys, self.dtype), jnp.zeros(values, self.dtype)) for _ in range(c.layers)
        )
        return Cache(layers=layers, positions_BS=zeros, segment_ids_BS=zeros)

    def extend(
        self,
        params: Params,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        cache: Cache,
        slot: Array | int,
    ) -> tuple[Array, Cache]:
        """Runs T more tokens of each row.

        Args:
          params: with their layers one by one (`partition.as_sampled`).
          slot: of the cache: the first of T that are written, of all rows; or [B] with T = 1, each
            row's own.

        Returns:
          Final normed activations [B, T, D] and the cache.
        """
        positions_BS = write(cache.positions_BS, positions_BT, slot, axis=1)
        segment_ids_BS = write(cache.segment_ids_BS, segment_ids_BT, slot, axis=1)
        seen = views(self.config, positions_BT, segment_ids_BT, positions_BS, segment_ids_BS)
        sliding = self.config.sliding or (False,) * self.config.layers
        x_BTD, written = self.embed(params, tokens_BT), []
        for layer, slides, layer_cache in zip(params["layers"], sliding, cache.layers, strict=True):
            x_BTD, layer_cache = self.layer.apply(
                {"params": layer}, x_BTD, seen.of(slides), layer_cache, slot
            )
            written.append(layer_cache)
        cache = Cache(
            layers=tuple(written), positions_BS=positions_BS, segment_ids_BS=segment_ids_BS
        )
        return self.final_norm(params, x_BTD), cache
