"""A policy from scratch, with random parameters and one token per byte."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import Choice, kernel_for
from rl4p.model.decoder import Decoder, DecoderConfig, Remat
from rl4p.model.decoder_config import DeltaConfig
from rl4p.model.policy import Policy
from rl4p.model.rope import Scaling
from rl4p.model.tokenizer import byte_tokenizer


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """A policy with the architecture of Qwen2, of Llama or of Qwen 3.5.

    It is Llama's if `attention_bias` is false, and that of Qwen 3.5 if `attention_interval` is set.

    Attributes:
      width, layers, heads, num_kv_heads, feed_forward_width: the shape; the head width is
        width / heads.
      vocabulary: the rows of the embedding; None is the number of tokens, rounded up to a
        multiple of 8.
      tied_embedding, attention_bias, rope_theta, rope_scaling: as in `DecoderConfig`.
      attention_interval: one of so many layers has attention, and the others have a gated delta
        rule, with heads of the same number and width; None if all layers have attention.
      dtype: the dtype of activations.
      param_dtype: the dtype of the parameters.
      remat: which activations the backward pass recomputes (`Decoder`).
      unroll: unrolls the layers, which makes updates faster on a CPU; requires `remat=none`
        (`Decoder`).
      exact: sums have an order that does not depend on the batch, so that the sampler's
        log-probabilities are the trainer's in every digit; on a CPU (`exact_sums.py`).
      attention: the attention kernel for full sequences: `xla`, `cudnn` (GPU), `splash` (TPU), or
        `auto`, the fastest one for these devices and this model.
    """

    width: Positive = 96
    layers: Positive = 3
    heads: Positive = 3
    num_kv_heads: Positive = 1
    feed_forward_width: Positive = 288
    vocabulary: Positive | None = None
    max_positions: Positive = 2048
    tied_embedding: bool = True
    attention_bias: bool = True
    attention_interval: Positive | None = None
    rope_theta: AboveZero = 10_000.0
    rope_scaling: Scaling | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Remat = "elementwise"
    unroll: bool = False
    exact: bool = False
    attention: Choice = "auto"

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.num_kv_heads:
            raise ValueError(
                f"width {self.width} must be a multiple of heads {self.heads}, and heads a "
                f"multiple of num_kv_heads {self.num_kv_heads}."
            )

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """Returns the policy and its parameters on the mesh."""
        policy = self.policy(mesh)
        return policy, placement.init(mesh, self.init(policy), key)

    def abstract(self, mesh: Mesh) -> tuple[Policy, Params]:
        """Returns the policy and the shapes and shardings of its parameters; creates no arrays."""
        policy = self.policy(mesh)
        return policy, placement.shapes(mesh, self.init(policy), jax.random.key(0))

    def init(self, policy: Policy) -> Callable[[Array], Params]:
        """Returns a function from a random key to parameters."""
        if self.param_dtype == "float32":
            return policy.decoder.init
        return lambda key: jax.tree.map(
            lambda x: x.astype(self.param_dtype), policy.decoder.init(key)
        )

    def policy(self, mesh: Mesh) -> Policy:
        """Returns the policy without its parameters."""
        tokenizer: Any = byte_tokenizer()
        if self.vocabulary is not None and self.vocabulary < len(tokenizer):
            raise InputError(
                f"model.vocabulary={self.vocabulary} is less than the {len(tokenizer)} tokens of "
                "the tokenizer."
            )
        config = DecoderConfig(
            vocabulary=self.vocabulary or -(-len(tokenizer) // 8) * 8,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            num_kv_heads=self.num_kv_heads,
            head_width=self.width // self.heads,
            feed_forward_width=self.feed_forward_width,
            max_positions=self.max_positions,
            family="qwen2" if self.attention_bias else "llama",
            tied_embedding=self.tied_embedding,
            attention_bias=self.attention_bias,
            rope_theta=self.rope_theta,
            rope_scaling=self.rope_scaling,
        )
        if self.attention_interval is not None:
            config = with_delta(config, self.attention_interval)
        kernel = kernel_for(self.attention, config, self.dtype, mesh.platform)
        mesh.check_divides(config.dimensions)
        return Policy(
            decoder=Decoder(
                config=config,
                dtype=self.dtype,
                remat=self.remat,
                unroll=self.unroll,
                exact=self.exact,
                attention=kernel,
                platform=mesh.platform,
            ),
            tokenizer=tokenizer,
            mesh=mesh,
            end_ids=(tokenizer.eos_token_id,),
            pad_id=tokenizer.pad_token_id,
        )


def with_delta(config: DecoderConfig, interval: int) -> DecoderConfig:
    """Returns the options of Qwen 3.5 for a shape, where one of `interval` layers has attention."""
    width = config.head_width
    return replace(
        config,
        family="qwen3_5_text",
        mixers=tuple(
            "attention" if (i + 1) % interval == 0 else "delta" for i in range(config.layers)
        ),
        delta=DeltaConfig(
            key_heads=config.heads,
            value_heads=config.heads,
            key_width=width,
            value_width=width,
        ),
        rotary_width=max(width // 8, 1) * 2,  # a quarter of a head, and even
        output_bias=config.attention_bias,
        attention_gate=True,
        query_key_norm="head",
        centered_norm=True,
    )
