"""Llama 3.x and models of its shape: no biases, scaled positions since 3.1 (2407.21783)."""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.families.names import LAYER_NAMES, names


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("attention_bias", False)
    keys.must_be("mlp_bias", False)
    keys.must_be("sliding_window", None)
    keys.no_window()
    return DecoderConfig(
        family="llama",
        **keys.rope(),
        **keys.shape(),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
    )


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


FAMILY = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    classifier="LlamaForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=LAYER_NAMES),
)
