"""The text model of Gemma 3: normed queries and keys, two rope bases, sliding layers.

By default every sixth layer has full attention. Formulas and defaults: 2503.19786.
"""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families import gemma2, qwen3
from rl4p.model.families.family import Family
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.families.names import names

NAMES = qwen3.NAMES | gemma2.NAMES


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("attn_logit_softcapping", None)  # transformers has the key, and no code for it
    shape = keys.shape(head_width=256)
    pattern = keys.get("sliding_window_pattern", int, 6)
    slides = [(i + 1) % pattern != 0 for i in range(shape["layers"])]
    return DecoderConfig(
        family="gemma3_text",
        **read_rope(keys),
        **shape,
        **gemma2.read_gemma(keys),
        **keys.sliding(keys.window(4096), slides),
        logits_softcap=gemma2.read_softcap(keys, "final_logit_softcapping", None),
        query_key_norm="head",
    )


def read_rope(
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
    sections = keys.section("rope_parameters")
    for name in sections.keys() - {"full_attention", "sliding_attention"}:
        raise keys.refuse(f"rope_parameters with {name!r}")
    inside = Keys(sections, f"{keys.where}, in rope_parameters,")
    whole, local = inside.section("full_attention"), inside.section("sliding_attention")
    if keys.scaling(local) is not None:
        raise keys.refuse("scaled positions in sliding-window layers")
    old = keys.section("rope_scaling")
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


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | gemma2.write_gemma(c) | {"rope_local_base_freq": c.local_rope_theta}


FAMILY = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    classifier="Gemma3TextForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=partial(names, layer_names=NAMES),
)
