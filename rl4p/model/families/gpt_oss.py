"""GPT-OSS: attention sinks, alternate sliding layers, experts with biases (2508.10925).

The weights of experts may be in MXFP4 (`quantization.py`), and are written in the dtype of an
export.
"""

from collections.abc import Iterator
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.experts import LIMIT, SLOPE
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, TensorPart, names
from rl4p.model.families.keys import Keys, write_layer_types, write_shape
from rl4p.model.quantization import MXFP4

GPT_OSS_NAMES = {
    path: name for path, name in LAYER_NAMES.items() if not name.startswith("mlp.")
} | {
    ("sinks",): "self_attn.sinks",
    ("experts", "router_bias"): "mlp.router.bias",
    ("experts", "down"): "mlp.experts.down_proj",
    ("experts", "down_bias"): "mlp.experts.down_proj_bias",
}
# Neighbours in the last axis are the gate and the up projection of one element.
PAIRS = {
    "mlp.experts.gate_up_proj": ("gate", "up"),
    "mlp.experts.gate_up_proj_bias": ("gate_bias", "up_bias"),
}
ROPE = {  # of a file without a rope section, such as those of the first models
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gpt_oss(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("swiglu_alpha", SLOPE)
    keys.must_be("swiglu_limit", LIMIT)
    experts = keys.size("num_local_experts", keys.config.get("num_experts"))
    chosen = keys.size("num_experts_per_tok", keys.config.get("experts_per_token"))
    if chosen > experts:
        raise InputError(
            f"{keys.where}: num_experts_per_tok {chosen} is more than num_local_experts {experts}."
        )
    shape = keys.shape(head_width=64)
    slides = [i % 2 == 0 for i in range(shape["layers"])]
    # The same as original_max_position_embeddings, in files from before transformers knew the key.
    original = keys.get("initial_context_length", int, 0)
    rope = keys.rope(theta=150_000.0)
    sections = [keys.get(key, dict, {}) for key in ("rope_scaling", "rope_parameters")]
    if rope["rope_scaling"] is None and not any(sections):
        rope["rope_scaling"] = keys.scaling(ROPE)
    if original and original != getattr(rope["rope_scaling"], "original_max_positions", original):
        raise keys.two_ropes("initial_context_length and its rope section")
    return DecoderConfig(
        family="gpt_oss",
        **rope,
        **shape,
        **keys.sliding(keys.window(128), slides),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        **keys.biases(default=True),
        attention_sinks=True,
        activation="clamped_swish",
        experts=experts,
        chosen_experts=chosen,
        expert_bias=True,
        normalized_experts=True,
    )


def write_gpt_oss(c: DecoderConfig) -> dict[str, Any]:
    keys = write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "swiglu_limit": LIMIT,
        "sliding_window": c.window or 128,
        "layer_types": write_layer_types(c),
        "num_local_experts": c.experts,
        "num_experts_per_tok": c.chosen_experts,
    }
    if c.rope_scaling is None:  # else a reader would take `ROPE`
        keys["rope_parameters"] = {"rope_type": "default", "rope_theta": c.rope_theta}
    return keys


def gpt_oss_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    yield from names(c, GPT_OSS_NAMES)
    for layer in range(c.layers):
        start = f"model.layers.{layer}."
        router = ("layers", "experts", "router")
        yield Tensor(router, layer, None, f"{start}mlp.router.weight", True)
        for axis, (name, pair) in zip((2, 1), PAIRS.items(), strict=True):
            for i, parameter in enumerate(pair):
                part = TensorPart(axis, i, 2, 2 * c.feed_forward_width)
                path = ("layers", "experts", parameter)
                yield Tensor(path, layer, None, start + name, False, part)


GPT_OSS = Family(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    classifier="GptOssForSequenceClassification",
    read_config=read_gpt_oss,
    write_config=write_gpt_oss,
    names=gpt_oss_tensors,
    quantization=MXFP4,
)
