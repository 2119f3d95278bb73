"""Qwen 3, with norms of queries and keys in each head, and without biases (2505.09388)."""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.families.names import LAYER_NAMES, names
from rl4p.model.families.qwen2 import read_sliding, write_sliding

NAMES = LAYER_NAMES | {
    ("query_norm", "scale"): "self_attn.q_norm.weight",
    ("key_norm", "scale"): "self_attn.k_norm.weight",
}


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("attention_bias", False)
    return DecoderConfig(
        family="qwen3",
        **keys.rope(),
        **keys.shape(head_width=128),
        **read_sliding(keys),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
        query_key_norm="head",
    )


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | write_sliding(c) | {"hidden_act": "silu", "attention_bias": False}


FAMILY = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    classifier="Qwen3ForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=NAMES),
)
