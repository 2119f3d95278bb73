"""SmolLM3: the shape of Llama, where every fourth layer has no rotary embeddings (2501.18795)."""

from functools import partial
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_layer_types, write_shape
from rl4p.model.families.names import LAYER_NAMES, names


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("attention_bias", False)
    keys.must_be("mlp_bias", False)
    shape = keys.shape()
    unrotated = read_unrotated(keys, shape["layers"])
    window = None
    if keys.get("use_sliding_window", bool, False) and config.get("sliding_window") is not None:
        window = keys.size("sliding_window")
    return DecoderConfig(
        family="smollm3",
        **keys.rope(theta=2_000_000.0),
        **shape,
        **keys.sliding(window, list(unrotated)),
        unrotated=unrotated if any(unrotated) else (),
        tied_embedding=keys.get("tie_word_embeddings", bool, True),
        attention_bias=False,
    )


def read_unrotated(keys: Keys, layers: int) -> tuple[bool, ...]:
    """Returns for each layer whether it has no rotary embeddings.

    no_rope_layers has a 1 for each layer that has them. In its place, no_rope_layer_interval=n
    means that every n-th layer has none.
    """
    interval = keys.size("no_rope_layer_interval", 4)
    rotated = keys.get(
        "no_rope_layers", list, [int((i + 1) % interval != 0) for i in range(layers)]
    )
    if len(rotated) < layers or any(type(x) is not int or x not in (0, 1) for x in rotated):
        raise InputError(
            f"{keys.where}: no_rope_layers must have a 0 or a 1 for each of the {layers} layers, "
            f"not {rotated!r}."
        )
    return tuple(x == 0 for x in rotated[:layers])


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "no_rope_layers": [int(not kind.unrotated) for kind in c.kinds],
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "layer_types": write_layer_types(c),
    }


FAMILY = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    classifier="SmolLM3ForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=LAYER_NAMES),
)
