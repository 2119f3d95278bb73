"""Hunyuan 1 of Tencent, with and without experts (2411.02265).

Queries and keys are normed after they are rotated. A layer with experts has a shared one beside
them. The rotary base may be stretched once for all lengths, by `alpha`.
"""

from copy import copy
from dataclasses import replace
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.expert_keys import NO_WINDOW, KeyGroup, fixed
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import LAYER_NAMES
from rl4p.model.families.keys import Keys
from rl4p.model.families.sparse import ALL_BIASES, Sparse
from rl4p.model.router import Router

NAMES = LAYER_NAMES | {
    ("query_norm", "scale"): "self_attn.query_layernorm.weight",
    ("key_norm", "scale"): "self_attn.key_layernorm.weight",
}


def stretched(keys: Keys) -> Keys:
    """Returns the keys with a base that is stretched in place of `alpha`.

        base = rope_theta alpha^(h / (h - 2))

    The files call this type dynamic, of which it has the formula at one length.
    """
    config: dict[str, Any] = copy(keys.config)
    heads, width = keys.size("num_attention_heads"), keys.size("hidden_size")
    h = keys.size("head_dim", width // heads)
    for name in ("rope_scaling", "rope_parameters"):
        section = keys.get(name, dict, {})
        kind = section.get("rope_type", section.get("type"))
        if kind == "dynamic" and section.get("alpha"):
            alpha = replace(keys, config=section).get("alpha", float)
            if alpha <= 0 or h <= 2:
                raise keys.refuse(f"alpha {alpha} with heads of {h} elements")
            theta = keys.theta(section, "rope_theta", 10_000.0) * alpha ** (h / (h - 2))
            config[name] = {"rope_type": "default", "rope_theta": theta}
            config["rope_theta"] = theta
    return replace(keys, config=config)


def read_experts(keys: Keys, _: dict[str, Any]) -> dict[str, Any]:
    """Reads the number of experts of a token, which may be a list with one number per layer."""
    chosen = keys.config.get("moe_topk")
    keys.must_be("num_experts_per_tok", chosen)
    if isinstance(chosen, list):
        if len(set(chosen)) != 1:
            raise keys.refuse(f"moe_topk {chosen!r}")
        keys = replace(keys, config=dict(keys.config) | {"moe_topk": chosen[0]})
    experts, used = keys.size("num_experts"), keys.size("moe_topk")
    keys.must_be("num_local_experts", experts)
    if used > experts:
        raise keys.refuse(f"moe_topk {used}, which is more than num_experts {experts},")
    return {"experts": experts, "chosen_experts": used}


def write_experts(c: DecoderConfig) -> dict[str, Any]:
    return {"num_experts": c.experts, "moe_topk": c.chosen_experts}


# A shared expert is as wide as another one.
SHARED = KeyGroup(lambda _, options: {"shared_width": options["feed_forward_width"]}, lambda _: {})
COMMON = fixed(query_key_norm="rotated"), ALL_BIASES, NO_WINDOW
HUNYUAN = (
    Sparse(
        stem="HunYuanMoEV1",
        key_groups=(
            KeyGroup(read_experts, write_experts),
            fixed(router=Router(exact=True), normalized_experts=True),
            SHARED,
            *COMMON,
        ),
        experts=ExpertNames(router="mlp.gate.wg.weight", shared="mlp.shared_mlp"),
        layer_names=NAMES,
        prepare=stretched,
    ).family("hunyuan_v1_moe"),
    Sparse(stem="HunYuanDenseV1", key_groups=COMMON, layer_names=NAMES, prepare=stretched).family(
        "hunyuan_v1_dense"
    ),
)
