"""The text model of Gemma 4.

Beside what Gemma 3 has: heads of another shape in layers of full attention, whose keys may also be
their values; norms of values; queries that nothing divides; inputs of each layer's own; last layers
with the keys and values of earlier ones; and experts beside the feed-forward. Its norms multiply by
their weight alone.
"""

from collections.abc import Iterator
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.decoder_config import KeyHeads, SharedKeys
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import Family, Tensor, names
from rl4p.model.families.gemma import GEMMA3_NAMES, read_softcap
from rl4p.model.families.keys import Keys, write_layer_types, write_scaling, write_shape
from rl4p.model.rope import ProportionalScaling, Scaling
from rl4p.model.router import Router

GEMMA4_NAMES = GEMMA3_NAMES | {
    ("input_gate", "kernel"): "per_layer_input_gate.weight",
    ("input_output", "kernel"): "per_layer_projection.weight",
    ("input_norm", "scale"): "post_per_layer_input_norm.weight",
    ("multiplier",): "layer_scalar",
    ("router_norm", "scale"): "router.scale",
    ("experts", "router_factor"): "router.per_expert_scale",
    ("experts_norm", "scale"): "pre_feedforward_layernorm_2.weight",
    ("experts_post_norm", "scale"): "post_feedforward_layernorm_2.weight",
    ("gated_post_norm", "scale"): "post_feedforward_layernorm_1.weight",
}
EXPERTS = ExpertNames(
    router="router.proj.weight", experts="experts", fused=("gate_up_proj", "down_proj")
)
PER_LAYER_NAMES = {
    ("embedding",): "embed_tokens_per_layer.weight",
    ("projection", "kernel"): "per_layer_model_projection.weight",
    ("norm", "scale"): "per_layer_projection_norm.weight",
}


def gemma4_names(c: DecoderConfig) -> Iterator[Tensor]:
    yield from names(c, GEMMA4_NAMES)
    yield from EXPERTS.tensors(c)
    if c.per_layer_width:
        for path, name in PER_LAYER_NAMES.items():
            whole = ("per_layer", *path)
            yield Tensor(whole, None, None, f"model.{name}", path[-1] == "kernel")


def read_gemma4(keys: Keys) -> DecoderConfig:
    for key in ("rope_theta", "rope_scaling", "partial_rotary_factor", "rope_local_base_freq"):
        keys.must_be(key, None)  # transformers reads none of them
    keys.must_be("hidden_activation", "gelu_pytorch_tanh", "activation")
    keys.must_be("use_bidirectional_attention", "vision")  # which changes nothing for text
    shape = keys.shape(head_width=256)
    sliding = read_sliding(keys, shape["layers"])
    per_layer = keys.get("hidden_size_per_layer_input", int, 256)
    own_vocabulary = keys.size("vocab_size_per_layer_input", 262_144)
    if per_layer and own_vocabulary != shape["vocabulary"]:
        raise keys.refuse(f"vocab_size_per_layer_input {own_vocabulary} beside another vocab_size")
    slides = sliding.get("sliding", (False,) * shape["layers"])
    return DecoderConfig(
        family="gemma4_text",
        **read_rope(keys, slides=any(slides)),
        **shape,
        **sliding,
        **keys.biases(),
        full=read_full(keys, shape, slides),
        sharing=read_sharing(keys, shape, slides),
        query_key_norm="head",
        normed_values=True,
        query_scalar=1.0,
        post_norms=True,
        activation="gelu_tanh",
        logits_softcap=read_softcap(keys, "final_logit_softcapping", None),
        tied_embedding=keys.get("tie_word_embeddings", bool, True),
        scaled_embedding=True,
        per_layer_width=per_layer,
        scaled_layers=True,
        **read_experts(keys, shape["layers"]),
    )


def read_experts(keys: Keys, layers: int) -> dict[str, Any]:
    """Returns the options of experts, which stand beside the feed-forward of every layer."""
    if not keys.get("enable_moe_block", bool, False):
        keys.unused("num_experts", "top_k_experts", "moe_intermediate_size")
        return {}
    count, chosen = keys.size("num_experts"), keys.size("top_k_experts")
    if chosen > count:
        raise InputError(f"{keys.where}: top_k_experts {chosen} is more than num_experts {count}.")
    return {
        "feed_forwards": ("both",) * layers,
        "experts": count,
        "chosen_experts": chosen,
        "expert_width": keys.size("moe_intermediate_size"),
        "normalized_experts": True,
        "router": Router(scaled=True),
    }


def read_sliding(keys: Keys, layers: int) -> dict[str, Any]:
    """Returns the sliding layers; the last layer never slides, whatever layer_types says."""
    sliding = keys.sliding(keys.window(512), [(i + 1) % 6 != 0 for i in range(layers)])
    if "sliding" not in sliding:
        return {}
    slides = (*sliding["sliding"][:-1], False)
    return sliding | {"sliding": slides} if any(slides) else {}


def read_rope(keys: Keys, *, slides: bool) -> dict[str, Any]:
    """Returns the rope options, from one section for each type of layer."""
    default = {
        "sliding_attention": {"rope_theta": 10_000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    }
    sections = keys.get("rope_parameters", dict, {}) or default
    for name in sections.keys() - default.keys():
        raise keys.refuse(f"rope_parameters with {name!r}")
    inside = Keys(sections, f"{keys.where}, in rope_parameters,")
    whole = Keys(inside.get("full_attention", dict), inside.where)
    options = {"rope_theta": whole.get("rope_theta", float), "rope_scaling": read_scaling(whole)}
    if not slides:
        return options
    local = Keys(inside.get("sliding_attention", dict), inside.where)
    if keys.scaling(local.config) is not None:
        raise keys.refuse("scaled positions in sliding-window layers")
    return options | {"local_rope_theta": local.get("rope_theta", float)}


def read_scaling(section: Keys) -> Scaling | None:
    """Returns the scaling of layers with full attention."""
    kind = section.get("rope_type", str, "default")
    for key in section.config.keys() - {"rope_type", "rope_theta"}:
        if kind != "proportional" or key not in ("partial_rotary_factor", "factor"):
            raise section.refuse(f"{key} {section.config[key]!r} with rope type {kind!r}")
    if kind == "default":
        return None
    if kind != "proportional":
        raise section.refuse(f"rope type {kind!r}")
    part = section.get("partial_rotary_factor", float, 1.0)
    if not 0 <= part <= 1:
        raise section.refuse(f"partial_rotary_factor {part}")
    return ProportionalScaling(part=part, factor=section.get("factor", float, 1.0))


def read_full(keys: Keys, shape: dict[str, Any], slides: tuple[bool, ...]) -> KeyHeads:
    """Returns the heads of layers with full attention.

    Their number and width are two keys, or in files of later transformers an entry of
    per_layer_config for each layer.
    """
    as_values = keys.get("attention_k_eq_v", bool, False)
    width = keys.size("global_head_dim", 512)
    count = keys.size("num_global_key_value_heads", shape["num_kv_heads"])
    own = {"head_dim": width, "num_key_value_heads": count if as_values else shape["num_kv_heads"]}
    usual = {"head_dim": shape["head_width"], "num_key_value_heads": shape["num_kv_heads"]}
    entries = keys.config.get("per_layer_config")
    if entries == {}:  # no layer differs from the others
        own = usual
    elif entries is not None:
        full = {str(layer) for layer, one in enumerate(slides) if not one}
        first = entries.get(min(entries)) if isinstance(entries, dict) else None
        if (
            not isinstance(first, dict)
            or not first.keys() <= own.keys()
            or (entries != dict.fromkeys(full, first))
        ):
            raise keys.refuse("a per_layer_config that is not the same for all full layers")
        inside = Keys(first, f"{keys.where}, in per_layer_config,")
        own = {key: inside.size(key, usual[key]) for key in own}
    if not as_values and own["num_key_value_heads"] != shape["num_kv_heads"]:
        raise keys.refuse("other key and value heads in full layers without attention_k_eq_v")
    if shape["heads"] % own["num_key_value_heads"]:
        raise InputError(
            f"{keys.where}: num_attention_heads {shape['heads']} is not a multiple of the "
            f"{own['num_key_value_heads']} key and value heads of full layers."
        )
    return KeyHeads(
        head_width=own["head_dim"],
        num_kv_heads=own["num_key_value_heads"],
        keys_as_values=as_values,
    )


def read_sharing(keys: Keys, shape: dict[str, Any], slides: tuple[bool, ...]) -> SharedKeys | None:
    shared, double = (
        keys.get("num_kv_shared_layers", int, 0),
        keys.get("use_double_wide_mlp", bool, False),
    )
    if not shared:
        return None
    own = shape["layers"] - shared
    if shared < 0 or own < 1 or {*slides[:own]} != {*slides}:
        raise InputError(
            f"{keys.where}: num_kv_shared_layers {shared} leaves no layer of each type with keys "
            "and values of its own."
        )
    width = shape["feed_forward_width"]
    return SharedKeys(layers=shared, feed_forward_width=2 * width if double else width)


def write_gemma4(c: DecoderConfig) -> dict[str, Any]:
    shape = write_shape(c)
    del shape["rope_theta"]
    shape.pop("rope_scaling", None)
    whole = write_scaling(c.rope_scaling) or {"rope_type": "default"}
    sections = {"full_attention": {"rope_theta": c.rope_theta, **whole}}
    if c.local_rope_theta is not None:
        local = {"rope_type": "default", "rope_theta": c.local_rope_theta}
        sections["sliding_attention"] = local
    full = c.key_heads(c.kinds[-1])
    experts = {
        "num_experts": c.experts,
        "top_k_experts": c.chosen_experts,
        "moe_intermediate_size": c.expert_width,
    }
    double = c.sharing is not None and c.sharing.feed_forward_width != c.feed_forward_width
    return shape | {
        "rope_parameters": sections,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": c.attention_bias,
        "final_logit_softcapping": c.logits_softcap,
        "sliding_window": c.window or 512,
        "layer_types": write_layer_types(c),
        "global_head_dim": full.head_width,
        "num_global_key_value_heads": full.num_kv_heads,
        "attention_k_eq_v": full.keys_as_values,
        "num_kv_shared_layers": c.sharing.layers if c.sharing else 0,
        "use_double_wide_mlp": double,
        "hidden_size_per_layer_input": c.per_layer_width,
        "vocab_size_per_layer_input": c.vocabulary,
        "enable_moe_block": bool(c.experts),
        **(experts if c.experts else {}),
    }


GEMMA4 = Family(
    model_type="gemma4_text",
    architecture="Gemma4ForCausalLM",
    classifier="Gemma4TextForSequenceClassification",
    read_config=read_gemma4,
    write_config=write_gemma4,
    names=gemma4_names,
    # The files on the hub have them, and nothing reads them.
    unused=r"model\.layers\.({shared})\.self_attn\.(k_proj|v_proj|k_norm)\.weight",
)
