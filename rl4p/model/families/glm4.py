"""GLM-4 of 2025: norms before and after each block, neighbours of half a head are rotated."""

from collections.abc import Iterator
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families import phi3, qwen2
from rl4p.model.families.family import Family, Tensor
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.families.names import names, rows

NAMES = qwen2.NAMES | {
    ("attention_post_norm", "scale"): "post_self_attn_layernorm.weight",
    ("feed_forward_post_norm", "scale"): "post_mlp_layernorm.weight",
    **{(name, "kernel"): phi3.GATE_UP for name in ("gate", "up")},
}


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("layer_types", None)
    shape = keys.shape(head_width=128)
    return DecoderConfig(
        family="glm4",
        **keys.rope(head_width=shape["head_width"], rotated=0.5),
        **shape,
        interleaved_rope=True,
        post_norms=True,
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=keys.get("attention_bias", bool, True),
    )


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {"hidden_act": "silu", "attention_bias": c.attention_bias}


def tensors(c: DecoderConfig) -> Iterator[Tensor]:
    parts = rows({(name, "kernel"): c.feed_forward_width for name in ("gate", "up")})
    biases = NAMES if c.attention_bias else {k: v for k, v in NAMES.items() if k[1] != "bias"}
    return names(c, biases, parts)


FAMILY = Family(
    model_type="glm4",
    architecture="Glm4ForCausalLM",
    classifier="Glm4ForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=tensors,
)
