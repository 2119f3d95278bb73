"""Phi-3 and Phi-4, whose files have several kernels in one matrix.

* Phi-3 and Phi-4: queries, keys and values in one matrix, gate and up in another (2412.08905).
  A part of each head may be rotated, and LongRoPE may scale it; every layer slides if one does.
  Sequences longer than original_max_position_embeddings are refused with LongRoPE (`LongScaling`).
"""

from collections.abc import Iterator
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, names, rows
from rl4p.model.families.keys import Keys, limit_positions, write_positions, write_shape
from rl4p.model.rope import LongScaling

QUERY_KEY_VALUE, GATE_UP = "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"

PHI3_NAMES = LAYER_NAMES | {
    **{(name, "kernel"): QUERY_KEY_VALUE for name in ("query", "key", "value")},
    **{(name, "kernel"): GATE_UP for name in ("gate", "up")},
}


def read_phi3(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("layer_types", None)
    shape = keys.shape()
    window = None if keys.config.get("sliding_window") is None else keys.size("sliding_window")
    rope = keys.rope(head_width=shape["head_width"], long=True)
    if isinstance(rope["rope_scaling"], LongScaling):
        keys.get("original_max_position_embeddings", int)  # the family's default is another
    shape |= limit_positions(keys, rope["rope_scaling"], rope["rotary_width"])
    return DecoderConfig(
        family="phi3",
        **rope,
        **shape,
        **keys.sliding(window, [True] * shape["layers"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
    )


def write_phi3(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {"hidden_act": "silu", "sliding_window": c.window} | write_positions(c)


def phi3_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    heads, kv_heads = c.heads * c.head_width, c.num_kv_heads * c.head_width
    kernels = {"query": heads, "key": kv_heads, "value": kv_heads}
    parts = rows({(name, "kernel"): size for name, size in kernels.items()})
    parts |= rows({(name, "kernel"): c.feed_forward_width for name in ("gate", "up")})
    return names(c, PHI3_NAMES, parts)


PHI3 = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    classifier="Phi3ForSequenceClassification",
    read_config=read_phi3,
    write_config=write_phi3,
    names=phi3_tensors,
)
