"""The keys of config.json and the names of tensors of latent attention."""

import math
from copy import copy
from dataclasses import replace
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.decoder_config import LatentConfig, options
from rl4p.model.families.family import LAYER_NAMES
from rl4p.model.families.keys import Keys, limit_positions, write_positions, write_shape
from rl4p.model.rope import YarnScaling

ATTENTION = {
    ("query", "kernel"): "q_proj.weight",
    ("query_down", "kernel"): "q_a_proj.weight",
    ("query_norm", "scale"): "q_a_layernorm.weight",
    ("query_up", "kernel"): "q_b_proj.weight",
    ("key_value_down", "kernel"): "kv_a_proj_with_mqa.weight",
    ("key_value_norm", "scale"): "kv_a_layernorm.weight",
    ("key_value_up", "kernel"): "kv_b_proj.weight",
    ("output", "kernel"): "o_proj.weight",
    ("query_down", "bias"): "q_a_proj.bias",
    ("key_value_down", "bias"): "kv_a_proj_with_mqa.bias",
    ("output", "bias"): "o_proj.bias",
}


def latent_names(c: DecoderConfig) -> dict[tuple[str, ...], str]:
    """Returns the names of a layer's norms and attention."""
    without = ("query_down", "query_norm", "query_up")
    without = without if options(c.latent).query_rank is None else ("query",)
    own = {name: LAYER_NAMES[name, "scale"] for name in ("attention_norm", "feed_forward_norm")}
    return {(name, "scale"): whole for name, whole in own.items()} | {
        ("latent", *path): f"self_attn.{name}"
        for path, name in ATTENTION.items()
        if path[0] not in without and (c.attention_bias or path[-1] != "bias")
    }


def read_latent(
    keys: Keys, *, long: bool, narrow_values: bool, whole_heads: bool
) -> dict[str, Any]:
    """Returns the decoder's options of shape, rotation and latent attention.

    Args:
      long: whether the family may have the rope type longrope.
      narrow_values: whether values are by default as wide as the width divided by the heads.
      whole_heads: whether head_dim is the width of queries, and not that of their rotated part.
    """
    shape = keys.shape()
    if shape["num_kv_heads"] != shape["heads"]:
        raise keys.refuse(f"num_key_value_heads {shape['num_kv_heads']} of {shape['heads']} heads")
    unrotated, rotated = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    keys.must_be("qk_head_dim", unrotated + rotated)
    keys.must_be("head_dim", unrotated + rotated if whole_heads else rotated)
    if rotated % 2:
        raise keys.refuse(f"qk_rope_head_dim {rotated}, which is odd,")
    # Null is no rank, and not a family's default.
    ranked = "q_lora_rank" not in keys.config or keys.config.get("q_lora_rank") is not None
    narrow = shape["width"] // shape["heads"] if narrow_values else None
    bias = keys.get("attention_bias", bool, False)
    latent = LatentConfig(
        rank=keys.size("kv_lora_rank"),
        query_rank=keys.size("q_lora_rank") if ranked else None,
        unrotated_width=unrotated,
        rotated_width=rotated,
        value_width=keys.size("v_head_dim", narrow),
        score_growth=read_growth(keys),
    )
    rope = keys.rope(long=long)
    options = {
        "head_width": unrotated + rotated,
        "rotary_width": rotated,
        "attention_bias": bias,
        "output_bias": bias,
        "mixers": ("latent",) * shape["layers"],
        "latent": latent,
    }
    return shape | rope | limit_positions(keys, rope["rope_scaling"], rotated) | options


SECTIONS = ("rope_scaling", "rope_parameters")


def read_growth(keys: Keys) -> float:
    """Returns `LatentConfig.score_growth`, which is in the rope section."""
    sections = [keys.get(key, dict, {}) for key in SECTIONS]
    growths = [
        Keys(section, f"{keys.where}, in rope_parameters,").get("mscale_all_dim", float, 0.0)
        for section in sections
        if section
    ] or [0.0]
    if growths[0] != growths[-1]:
        raise keys.two_ropes("rope_scaling and rope_parameters")
    return growths[0]


def write_latent(c: DecoderConfig) -> dict[str, Any]:
    """Returns the keys of `read_latent`."""
    latent = options(c.latent)
    written = write_shape(replace(c, rotary_width=None, head_width=latent.rotated_width))
    if isinstance(c.rope_scaling, YarnScaling) and latent.score_growth:
        section = written["rope_scaling"] | {"mscale_all_dim": latent.score_growth}
        if c.rope_scaling.magnitude == 1:  # the quotient of two scales, for readers of no other key
            del section["attention_factor"]
            section["mscale"] = latent.score_growth
        written["rope_scaling"] = section
    return (
        written
        | write_positions(c)
        | {
            "hidden_act": "silu",
            "attention_bias": c.attention_bias,
            "q_lora_rank": latent.query_rank,
            "kv_lora_rank": latent.rank,
            "qk_nope_head_dim": latent.unrotated_width,
            "qk_rope_head_dim": latent.rotated_width,
            "v_head_dim": latent.value_width,
        }
    )


def without_growth(keys: Keys) -> tuple[Keys, float]:
    """Returns the keys of Mistral 4 without what others lack in the rope section, and the growth.

    The growth is `LatentConfig.query_growth`.
    """
    rotated = keys.size("qk_rope_head_dim")
    width = rotated + keys.size("qk_nope_head_dim")
    # A copy notes in the same place which keys were read.
    config, growths = copy(keys.config), []
    for key in SECTIONS:
        if not (section := keys.get(key, dict, {})):
            continue
        own = Keys(section, f"{keys.where}, in rope_parameters,")
        if (kind := section.get("rope_type", section.get("type"))) != "yarn":
            raise keys.refuse(f"rope type {kind!r}")
        if int(width * own.get("partial_rotary_factor", float, rotated / width)) != rotated:
            raise keys.refuse("partial_rotary_factor that does not rotate qk_rope_head_dim")
        growths.append(own.get("llama_4_scaling_beta", float))
        other = ("llama_4_scaling_beta", "partial_rotary_factor", "max_position_embeddings")
        config[key] = {name: value for name, value in section.items() if name not in other}
    if not growths:
        raise InputError(f"{keys.where} has no 'rope_parameters'.")
    if growths[0] != growths[-1]:
        raise keys.two_ropes("rope_scaling and rope_parameters")
    return Keys(config, keys.where), growths[0]


def write_growth(c: DecoderConfig, written: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of `write_latent` with those of `without_growth`."""
    latent = options(c.latent)
    part = latent.rotated_width / c.head_width
    if int(c.head_width * part) < latent.rotated_width:  # a reader rounds down
        part = math.nextafter(part, 1)
    own = {"llama_4_scaling_beta": latent.query_growth, "partial_rotary_factor": part}
    section = {"rope_theta": c.rope_theta} | written["rope_scaling"] | own
    rest = {key: x for key, x in written.items() if key not in ("rope_theta", "rope_scaling")}
    return rest | {"head_dim": c.head_width, "rope_parameters": section}
