"""OLMo 3: norms after each block and none before, norms over all heads, sliding layers.

By default every fourth layer has full attention, and only these are scaled. Formulas: 2501.00656
(OLMo 2), 2512.13961.
"""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families import gemma3
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_layer_types, write_scaling, write_shape
from rl4p.model.families.names import LAYER_NAMES, names
from rl4p.model.rope import YarnScaling

THETA = 500_000.0
NAMES = {path: name for path, name in LAYER_NAMES.items() if path[1] != "scale"} | {
    ("attention_post_norm", "scale"): "post_attention_layernorm.weight",
    ("feed_forward_post_norm", "scale"): "post_feedforward_layernorm.weight",
    ("query_norm", "scale"): "self_attn.q_norm.weight",
    ("key_norm", "scale"): "self_attn.k_norm.weight",
}


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("attention_bias", False)
    shape = keys.shape()
    slides = [(i + 1) % 4 != 0 for i in range(shape["layers"])]
    return DecoderConfig(
        family="olmo3",
        **read_rope(keys),
        **shape,
        **keys.sliding(keys.window(4096), slides),
        pre_norms=False,
        post_norms=True,
        query_key_norm="whole",
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
    )


def read_rope(keys: Keys) -> dict[str, Any]:
    """Returns the rope options: sliding layers are not scaled, and all layers have one base."""
    theta = keys.get("rope_theta", float, THETA)
    rope = gemma3.read_rope(keys, theta, "rope_theta", theta)
    sliding = keys.section("rope_parameters").get("sliding_attention") or {}
    if rope["rope_theta"] != rope["local_rope_theta"] or (
        theta != THETA and "rope_theta" not in sliding
    ):  # transformers 5 gives sliding layers that name no base the default one
        raise keys.two_ropes("the bases of its full-attention and sliding layers")
    scaling = rope["rope_scaling"]
    if isinstance(scaling, YarnScaling) and not scaling.truncated:
        raise keys.refuse("truncate false")  # transformers looks for it in another place
    return rope


def write_config(c: DecoderConfig) -> dict[str, Any]:
    """Writes the rope options twice: versions 4 and 5 of transformers look in two places."""
    plain = {"rope_theta": c.rope_theta, "rope_type": "default"}
    return write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": False,
        "sliding_window": c.window or 4096,
        "layer_types": write_layer_types(c),
        "rope_parameters": {
            "full_attention": plain | write_scaling(c.rope_scaling),
            "sliding_attention": plain,
        },
    }


FAMILY = Family(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    classifier="Olmo3ForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=NAMES),
)
