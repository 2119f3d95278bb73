"""Qwen 3 with experts in every layer, of which each token uses a few (2505.09388)."""

from collections.abc import Iterator
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.families import qwen3
from rl4p.model.families.family import Family, Tensor
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.families.names import names

NAMES = {path: name for path, name in qwen3.NAMES.items() if not name.startswith("mlp.")}
EXPERT_NAMES = {
    ("experts", "gate"): "gate_proj.weight",
    ("experts", "up"): "up_proj.weight",
    ("experts", "down"): "down_proj.weight",
}


def read_config(config: dict[str, Any], where: str) -> DecoderConfig:
    keys = Keys(config, where)
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("attention_bias", False)
    keys.must_be("decoder_sparse_step", 1)
    keys.must_be("mlp_only_layers", [])
    shape = keys.shape(feed_forward="moe_intermediate_size")
    window = None
    if keys.get("use_sliding_window", bool, False):
        window = keys.get("sliding_window", int)
        keys.must_be("layer_types", ["sliding_attention"] * shape["layers"])
    # transformers 5 also writes num_experts as num_local_experts.
    experts = keys.get("num_experts", int, config.get("num_local_experts"))
    chosen = keys.get("num_experts_per_tok", int)
    if chosen > experts:
        raise InputError(
            f"{where}: num_experts_per_tok {chosen} is more than num_experts {experts}."
        )
    return DecoderConfig(
        family="qwen3_moe",
        **keys.rope(),
        **shape,
        **keys.sliding(window, [True] * shape["layers"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=False,
        query_key_norm="head",
        experts=experts,
        chosen_experts=chosen,
        normalized_experts=keys.get("norm_topk_prob", bool, False),
    )


def write_config(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": c.feed_forward_width,
        "num_experts": c.experts,
        "num_experts_per_tok": c.chosen_experts,
        "norm_topk_prob": c.normalized_experts,
    }


def tensors(c: DecoderConfig) -> Iterator[Tensor]:
    yield from names(c, NAMES)
    for layer in range(c.layers):
        mlp = f"model.layers.{layer}.mlp"
        yield Tensor(("layers", "experts", "router"), layer, None, f"{mlp}.gate.weight", True)
        for path, name in EXPERT_NAMES.items():
            for expert in range(c.experts):
                whole = f"{mlp}.experts.{expert}.{name}"
                yield Tensor(("layers", *path), layer, expert, whole, True)


FAMILY = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    classifier="Qwen3MoeForSequenceClassification",
    read_config=read_config,
    write_config=write_config,
    names=tensors,
)
