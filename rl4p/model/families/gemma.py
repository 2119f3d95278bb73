"""Gemma 2 and the text model of Gemma 3.

* Gemma 2: norms before and after each block, soft caps, alternate sliding layers (2408.00118).
* Gemma 3: normed queries and keys, two rope bases, sliding layers. By default every sixth layer has
  full attention. Formulas and defaults: 2503.19786.
"""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import LAYER_NAMES, Family, names
from rl4p.model.families.keys import Keys, write_layer_types, write_shape
from rl4p.model.families.qwen import QWEN3_NAMES

GEMMA2_NAMES = LAYER_NAMES | {
    ("attention_post_norm", "scale"): "post_attention_layernorm.weight",
    ("feed_forward_norm", "scale"): "pre_feedforward_layernorm.weight",
    ("feed_forward_post_norm", "scale"): "post_feedforward_layernorm.weight",
}


def read_gemma2(keys: Keys) -> DecoderConfig:
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
    keys.must_be("use_bidirectional_attention", False)
    return {
        "centered_norm": True,
        "post_norms": True,
        "query_scalar": keys.get("query_pre_attn_scalar", float, 256.0),
        **keys.biases(),
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
        "attention_bias": c.attention_bias,
        "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
        "attn_logit_softcapping": c.attention_softcap,
        "final_logit_softcapping": c.logits_softcap,
        "sliding_window": c.window or 4096,
        "layer_types": write_layer_types(c),
    }


GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    classifier="Gemma2ForSequenceClassification",
    read_config=read_gemma2,
    write_config=lambda c: write_shape(c) | write_gemma(c),
    names=partial(names, layer_names=GEMMA2_NAMES),
)

GEMMA3_NAMES = QWEN3_NAMES | GEMMA2_NAMES


def read_gemma3(keys: Keys) -> DecoderConfig:
    keys.must_be("attn_logit_softcapping", None)  # transformers has the key, and no code for it
    shape = keys.shape(head_width=256)
    pattern = keys.get("sliding_window_pattern", int, 6)
    slides = [(i + 1) % pattern != 0 for i in range(shape["layers"])]
    return DecoderConfig(
        family="gemma3_text",
        **read_gemma3_rope(keys),
        **shape,
        **read_gemma(keys),
        **keys.sliding(keys.window(4096), slides),
        logits_softcap=read_softcap(keys, "final_logit_softcapping", None),
        query_key_norm="head",
    )


def read_gemma3_rope(
    keys: Keys,
    default: float = 1_000_000.0,
    local_key: str = "rope_local_base_freq",
    local_default: float = 10_000.0,
) -> dict[str, Any]:
    """Returns the rope options: full-attention and sliding layers have different bases.

    Only full-attention layers may be scaled. transformers 5 writes a section of rope_parameters
    for each kind, earlier versions rope_theta, rope_local_base_freq and rope_scaling.

    Args:
      default: the base of full-attention layers that name none.
      local_key, local_default: the key of the base of sliding layers, outside of the sections, and
        the base of those that name none.
    """
    keys.must_be("partial_rotary_factor", 1.0)
    sections = keys.get("rope_parameters", dict, {})
    for name in sections.keys() - {"full_attention", "sliding_attention"}:
        raise keys.refuse(f"rope_parameters with {name!r}")
    inside = Keys(sections, f"{keys.where}, in rope_parameters,")
    whole, local = (inside.get(f"{kind}_attention", dict, {}) for kind in ("full", "sliding"))
    if keys.scaling(local) is not None:
        raise keys.refuse("scaled positions in sliding-window layers")
    old = keys.get("rope_scaling", dict, {})
    if old and whole and keys.scaling(old) != keys.scaling(whole):
        raise keys.two_ropes("rope_scaling and rope_parameters")
    theta = keys.theta(whole, "rope_theta", default)
    if old and keys.theta(old, "rope_theta", theta) != theta:
        raise keys.two_ropes("rope_scaling and rope_parameters")
    return {
        "rope_theta": theta,
        "rope_scaling": keys.scaling(old or whole),
        "local_rope_theta": keys.theta(local, local_key, local_default),
    }


GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    classifier="Gemma3TextForSequenceClassification",
    read_config=read_gemma3,
    write_config=lambda c: (
        write_shape(c) | write_gemma(c) | {"rope_local_base_freq": c.local_rope_theta}
    ),
    names=partial(names, layer_names=GEMMA3_NAMES),
)
