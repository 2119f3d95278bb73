"""Gemma 2: norms before and after each block, soft caps, alternate sliding layers (2408.00118)."""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_layer_types, write_shape
from rl4p.model.families.names import LAYER_NAMES, names

NAMES = LAYER_NAMES | {
    ("attention_post_norm", "scale"): "post_attention_layernorm.weight",
    ("feed_forward_norm", "scale"): "pre_feedforward_layernorm.weight",
    ("feed_forward_post_norm", "scale"): "post_feedforward_layernorm.weight",
}


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    shape = keys.shape(head_width=256)
    return DecoderConfig(
        family="gemma2",
        **keys.rope(),
        **shape,
        **read_gemma(keys),
        **keys.sliding(keys.window(4096), [i % 2 == 0 for i in range(shape["layers"])]),
        attention_softcap=read_softcap(keys, "attn_logit_softcapping", 50.0),
        logits_softcap=read_softcap(keys, "final_logit_softcapping", 30.0),
    )


def read_gemma(keys: Keys) -> dict[str, Any]:
    """Returns the options that Gemma 2 and 3 share."""
    # transformers ignores hidden_act, which the first Gemma files contain.
    keys.must_be("hidden_activation", "gelu_pytorch_tanh", "activation")
    keys.must_be("attention_bias", False)
    keys.must_be("use_bidirectional_attention", False)
    return {
        "centered_norm": True,
        "post_norms": True,
        "query_scalar": keys.get("query_pre_attn_scalar", float, 256.0),
        "attention_bias": False,
        "activation": "gelu_tanh",
        "tied_embedding": keys.get("tie_word_embeddings", bool, True),
        "scaled_embedding": True,
    }


def read_softcap(keys: Keys, key: str, default: float | None) -> float | None:
    """Returns a soft cap: None if the key is null, the default if it is absent."""
    if default is None or key in keys.config:
        return None if keys.config.get(key) is None else keys.get(key, float)
    return default


def write_gemma(c: DecoderConfig) -> dict[str, Any]:
    scalar = float(c.query_scalar or c.head_width)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
        "attn_logit_softcapping": c.attention_softcap,
        "final_logit_softcapping": c.logits_softcap,
        "sliding_window": c.window or 4096,
        "layer_types": write_layer_types(c),
    }


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | write_gemma(c)


FAMILY = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    classifier="Gemma2ForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=NAMES),
)
