"""A policy from scratch: random parameters, one token per byte."""

from dataclasses import dataclass
from typing import Any, Literal

from rl4p.bounds import Positive
from rl4p.mesh import Mesh
from rl4p.model.decoder import Decoder, DecoderConfig, Remat
from rl4p.model.kernels import Kernel, check_kernel
from rl4p.model.policy import Policy
from rl4p.model.tokenizer import byte_tokenizer
from rl4p.types import Array, Params


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """A small Qwen2-shaped decoder; float32 parameters.

    Attributes:
      width, layers, heads, key_value_heads, feed_forward_width: the shape; a head is width / heads
        wide.
      dtype: of activations.
      remat: what the backward pass recomputes (`Decoder`).
      attention: the kernel over whole rows: `xla`; or `cudnn` or `splash`, of a GPU or a TPU.
    """

    width: Positive = 96
    layers: Positive = 3
    heads: Positive = 3
    key_value_heads: Positive = 1
    feed_forward_width: Positive = 288
    max_positions: Positive = 2048
    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Remat = "elementwise"
    attention: Kernel = "xla"

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.key_value_heads:
            raise ValueError(
                f"width {self.width} must divide by heads {self.heads}, and heads by "
                f"key_value_heads {self.key_value_heads}."
            )

    def build(self, mesh: Mesh, key: Array) -> tuple[Policy, Params]:
        """The policy and its parameters on the mesh."""
        tokenizer: Any = byte_tokenizer()
        config = DecoderConfig(
            vocabulary=-(-len(tokenizer) // 8) * 8,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            key_value_heads=self.key_value_heads,
            head_width=self.width // self.heads,
            feed_forward_width=self.feed_forward_width,
            max_positions=self.max_positions,
        )
        check_kernel(self.attention, config, self.dtype, mesh.platform)
        mesh.check_divides(config.dimensions)
        policy = Policy(
            decoder=Decoder(
                config=config, dtype=self.dtype, remat=self.remat, attention=self.attention
            ),
            tokenizer=tokenizer,
            mesh=mesh,
            end_ids=(tokenizer.eos_token_id,),
            pad_id=tokenizer.pad_token_id,
        )
        return policy, mesh.init(policy.decoder.init, key)
