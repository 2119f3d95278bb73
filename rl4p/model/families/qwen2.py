"""Qwen 2 and Qwen 2.5: biases on query, key and value (2407.10671, 2412.15115)."""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_layer_types, write_shape
from rl4p.model.families.names import LAYER_NAMES, names

NAMES = LAYER_NAMES | {
    ("query", "bias"): "self_attn.q_proj.bias",
    ("key", "bias"): "self_attn.k_proj.bias",
    ("value", "bias"): "self_attn.v_proj.bias",
}


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    return DecoderConfig(
        family="qwen2",
        **keys.rope(),
        **keys.shape(),
        **read_sliding(keys),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=True,
    )


def read_sliding(keys: Keys) -> dict[str, Any]:
    """Reads sliding layers if use_sliding_window: layer_types, else from max_window_layers on."""
    if not keys.get("use_sliding_window", bool, False):
        keys.no_window()
        return {}
    layers = keys.get("num_hidden_layers", int)
    first = keys.get("max_window_layers", int, 28)
    return keys.sliding(keys.get("sliding_window", int), [i >= first for i in range(layers)])


def write_sliding(c: DecoderConfig) -> dict[str, Any]:
    if c.window is None:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": c.window,
        "max_window_layers": c.sliding.index(True),
        "layer_types": write_layer_types(c),
    }


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | write_sliding(c) | {"hidden_act": "silu"}


FAMILY = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    classifier="Qwen2ForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=NAMES),
)
