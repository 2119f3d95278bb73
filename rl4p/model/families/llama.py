"""Models of Llama's shape with windows or without rotations: Mistral, SmolLM3 and OLMo 3.

* Mistral: no biases; if there is a window, every layer is a sliding layer (2310.06825). Ministral
  may have some layers of full attention. In Ministral 3, queries grow with their position.
* SmolLM3: every fourth layer has no rotary embeddings (2501.18795).
* EXAONE 4: as OLMo 3, with norms in each head; layers of full attention are not rotated
  (2507.11407).
* OLMo 3: norms after each block and none before, norms over all heads, sliding layers. By default
  every fourth layer has full attention, and only these are scaled. Formulas: 2501.00656 (OLMo 2),
  2512.13961.
"""

from copy import copy
from functools import partial
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.dense import OLMO2_NAMES, OLMO2_NORMS
from rl4p.model.families.expert_keys import UNROTATED_WINDOW, read_unrotated_window
from rl4p.model.families.family import LAYER_NAMES, Family, names
from rl4p.model.families.gemma import read_gemma3_rope
from rl4p.model.families.keys import Keys, write_layer_types, write_scaling, write_shape
from rl4p.model.rope import YarnScaling


def read_mistral(keys: Keys, family: str = "mistral") -> DecoderConfig:
    """Reads config.json; sliding_window is off if null, and 4096 (Mistral 7B) if absent."""
    keys.must_be("hidden_act", "silu", "activation")
    if family == "mistral":
        keys.must_be("layer_types", None)
    shape = keys.shape()
    no_window = "sliding_window" in keys.config and keys.config["sliding_window"] is None
    window = None if no_window else keys.get("sliding_window", int, 4096)
    return DecoderConfig(
        family=family,
        **keys.rope(),
        **shape,
        **keys.sliding(window, [True] * shape["layers"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
    )


MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    classifier="MistralForSequenceClassification",
    read_config=read_mistral,
    write_config=lambda c: write_shape(c) | {"hidden_act": "silu", "sliding_window": c.window},
    names=partial(names, layer_names=LAYER_NAMES),
)

MINISTRAL = Family(
    model_type="ministral",
    architecture="MinistralForCausalLM",
    classifier="MinistralForSequenceClassification",
    read_config=partial(read_mistral, family="ministral"),
    write_config=lambda c: MISTRAL.write_config(c) | {"layer_types": write_layer_types(c)},
    names=partial(names, layer_names=LAYER_NAMES),
)


def read_ministral3(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    for key in ("layer_types", "rope_scaling"):
        keys.must_be(key, None)
    section = keys.get("rope_parameters", dict)
    inside = Keys(section, f"{keys.where}, in rope_parameters,")
    if (kind := section.get("rope_type", section.get("type"))) != "yarn":
        raise keys.refuse(f"rope type {kind!r}")
    inside.size("original_max_position_embeddings")
    growth, others = "llama_4_scaling_beta", ("max_position_embeddings",)
    config = copy(keys.config)  # a copy notes in the same place which keys were read
    config["rope_parameters"] = {
        key: value for key, value in section.items() if key not in (growth, *others)
    }
    keys = Keys(config, keys.where)
    shape = keys.shape(head_width=128)
    window = keys.config.get("sliding_window") and keys.size("sliding_window")
    return DecoderConfig(
        family="ministral3",
        **keys.rope(),
        **shape,
        **keys.sliding(window, [True] * shape["layers"]),
        query_growth=inside.get(growth, float),
        attention_bias=False,
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
    )


def write_ministral3(c: DecoderConfig) -> dict[str, Any]:
    shape = write_shape(c)
    section = {"rope_theta": shape.pop("rope_theta")} | shape.pop("rope_scaling")
    return shape | {
        "hidden_act": "silu",
        "rope_parameters": section | {"llama_4_scaling_beta": c.query_growth},
        "sliding_window": c.window,
    }


MINISTRAL3 = Family(
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    classifier="Ministral3ForSequenceClassification",
    read_config=read_ministral3,
    write_config=write_ministral3,
    names=partial(names, layer_names=LAYER_NAMES),
)


def read_unrotated(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether it has no rotary embeddings.

    no_rope_layers has a 1 for each layer that has them. In its place, no_rope_layer_interval=n
    means that every n-th layer has none; Llama 4 then has an empty list.
    """
    interval = keys.size("no_rope_layer_interval", 4)
    usual = [int((i + 1) % interval != 0) for i in range(layers)]
    rotated = keys.get("no_rope_layers", list, []) or usual
    if len(rotated) < layers or any(type(x) is not int or x not in (0, 1) for x in rotated):
        raise InputError(
            f"{keys.where}: no_rope_layers must have a 0 or a 1 for each of the {layers} layers, "
            f"not {rotated!r}."
        )
    return tuple(x == 0 for x in rotated[:layers])


def read_smollm3(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    shape = keys.shape()
    unrotated = read_unrotated(keys, shape["layers"])
    window = None
    if (
        keys.get("use_sliding_window", bool, False)
        and keys.config.get("sliding_window") is not None
    ):
        window = keys.size("sliding_window")
    return DecoderConfig(
        family="smollm3",
        **keys.rope(theta=2_000_000.0),
        **shape,
        **keys.sliding(window, list(unrotated)),
        unrotated=unrotated if any(unrotated) else (),
        tied_embedding=keys.get("tie_word_embeddings", bool, True),
        **keys.biases(),
        feed_forward_bias=keys.get("mlp_bias", bool, False),
    )


def write_smollm3(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "mlp_bias": c.feed_forward_bias,
        "no_rope_layers": [int(not kind.unrotated) for kind in c.kinds],
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "layer_types": write_layer_types(c),
    }


SMOLLM3 = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    classifier="SmolLM3ForSequenceClassification",
    read_config=read_smollm3,
    write_config=write_smollm3,
    names=partial(names, layer_names=LAYER_NAMES),
)

OLMO3_THETA = 500_000.0


def read_olmo3(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    shape = keys.shape()
    slides = [(i + 1) % 4 != 0 for i in range(shape["layers"])]
    # Sliding layers are not scaled, and all layers have one base.
    theta = keys.get("rope_theta", float, OLMO3_THETA)
    rope = read_gemma3_rope(keys, theta, "rope_theta", theta)
    sliding = keys.get("rope_parameters", dict, {}).get("sliding_attention") or {}
    if rope["rope_theta"] != rope["local_rope_theta"] or (
        theta != OLMO3_THETA and "rope_theta" not in sliding
    ):  # transformers 5 gives sliding layers that name no base the default one
        raise keys.two_ropes("the bases of its full-attention and sliding layers")
    scaling = rope["rope_scaling"]
    if isinstance(scaling, YarnScaling) and not scaling.truncated:
        raise keys.refuse("truncate false")  # transformers looks for it in another place
    return DecoderConfig(
        family="olmo3",
        **rope,
        **shape,
        **keys.sliding(keys.window(4096), slides),
        **OLMO2_NORMS,
        **keys.biases(),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
    )


def write_olmo3(c: DecoderConfig) -> dict[str, Any]:
    """Writes the rope options twice: versions 4 and 5 of transformers look in two places."""
    plain = {"rope_theta": c.rope_theta, "rope_type": "default"}
    return write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "sliding_window": c.window or 4096,
        "layer_types": write_layer_types(c),
        "rope_parameters": {
            "full_attention": plain | write_scaling(c.rope_scaling),
            "sliding_attention": plain,
        },
    }


OLMO3 = Family(
    model_type="olmo3",
    architecture="Olmo3ForCausalLM",
    classifier="Olmo3ForSequenceClassification",
    read_config=read_olmo3,
    write_config=write_olmo3,
    names=partial(names, layer_names=OLMO2_NAMES),
)


def read_exaone4(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    shape = keys.shape()
    return DecoderConfig(
        family="exaone4",
        **keys.rope(),
        **shape,
        **read_unrotated_window(keys, shape),
        **{**OLMO2_NORMS, "query_key_norm": "head"},
        attention_bias=False,
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
    )


EXAONE4 = Family(
    model_type="exaone4",
    architecture="Exaone4ForCausalLM",
    classifier="Exaone4ForSequenceClassification",
    read_config=read_exaone4,
    write_config=lambda c: write_shape(c) | {"hidden_act": "silu"} | UNROTATED_WINDOW.write(c),
    names=partial(names, layer_names=OLMO2_NAMES),
)
