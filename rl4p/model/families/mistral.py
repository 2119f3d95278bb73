"""Mistral: no biases; if there is a window, every layer is a sliding layer (2310.06825)."""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.families.names import LAYER_NAMES, names


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    """Reads config.json; sliding_window is off if null, and 4096 (Mistral 7B) if absent."""
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("layer_types", None)
    shape = keys.shape()
    no_window = "sliding_window" in config and config["sliding_window"] is None
    window = None if no_window else keys.get("sliding_window", int, 4096)
    return DecoderConfig(
        family="mistral",
        **keys.rope(),
        **shape,
        **keys.sliding(window, [True] * shape["layers"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
    )


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {"hidden_act": "silu", "sliding_window": c.window}


FAMILY = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    classifier="MistralForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=LAYER_NAMES),
)
