"""Qwen 2, 2.5 and 3, and Qwen 3 with experts.

* Qwen 2 and 2.5: biases on query, key and value (2407.10671, 2412.15115).
* Qwen 3: norms of queries and keys in each head, and no biases (2505.09388).
* Qwen 3 with experts in every layer, of which each token uses a few.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from rl4p.base.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, names
from rl4p.model.families.keys import Keys, write_layer_types, write_shape


def read_qwen2(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    return DecoderConfig(
        family="qwen2",
        **keys.rope(),
        **keys.shape(),
        **read_sliding(keys),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        attention_bias=True,
    )


def read_sliding(keys: Keys) -> dict[str, Any]:
    """Reads sliding layers if use_sliding_window: layer_types, else from max_window_layers on."""
    if not keys.get("use_sliding_window", bool, False):
        keys.no_window()
        return {}
    layers = keys.get("num_hidden_layers", int)
    first = keys.get("max_window_layers", int, 28)
    return keys.sliding(keys.get("sliding_window", int), [i >= first for i in range(layers)])


def write_sliding(c: DecoderConfig) -> dict[str, Any]:
    if c.window is None:
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": c.window,
        "max_window_layers": c.sliding.index(True),
        "layer_types": write_layer_types(c),
    }


QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    classifier="Qwen2ForSequenceClassification",
    read_config=read_qwen2,
    write_config=lambda c: write_shape(c) | write_sliding(c) | {"hidden_act": "silu"},
    names=partial(names, layer_names=LAYER_NAMES),
)

QWEN3_NAMES = LAYER_NAMES | {
    ("query_norm", "scale"): "self_attn.q_norm.weight",
    ("key_norm", "scale"): "self_attn.k_norm.weight",
}


def read_qwen3(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    return DecoderConfig(
        family="qwen3",
        **keys.rope(),
        **keys.shape(head_width=128),
        **read_sliding(keys),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        **keys.biases(),
        query_key_norm="head",
    )


QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    classifier="Qwen3ForSequenceClassification",
    read_config=read_qwen3,
    write_config=lambda c: (
        write_shape(c)
        | write_sliding(c)
        | {"hidden_act": "silu", "attention_bias": c.attention_bias}
    ),
    names=partial(names, layer_names=QWEN3_NAMES),
)

QWEN3_MOE_NAMES = {path: name for path, name in QWEN3_NAMES.items() if not name.startswith("mlp.")}

EXPERT_NAMES = {
    ("experts", "gate"): "gate_proj.weight",
    ("experts", "up"): "up_proj.weight",
    ("experts", "down"): "down_proj.weight",
}


def read_qwen3_moe(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("decoder_sparse_step", 1)
    keys.must_be("mlp_only_layers", [])
    shape = keys.shape(feed_forward="moe_intermediate_size")
    window = None
    if keys.get("use_sliding_window", bool, False):
        window = keys.get("sliding_window", int)
        keys.must_be("layer_types", ["sliding_attention"] * shape["layers"])
    # transformers 5 also writes num_experts as num_local_experts.
    experts = keys.get("num_experts", int, keys.config.get("num_local_experts"))
    chosen = keys.get("num_experts_per_tok", int)
    if chosen > experts:
        raise InputError(
            f"{keys.where}: num_experts_per_tok {chosen} is more than num_experts {experts}."
        )
    return DecoderConfig(
        family="qwen3_moe",
        **keys.rope(),
        **shape,
        **keys.sliding(window, [True] * shape["layers"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
        **keys.biases(),
        query_key_norm="head",
        experts=experts,
        chosen_experts=chosen,
        normalized_experts=keys.get("norm_topk_prob", bool, False),
    )


def write_qwen3_moe(c: DecoderConfig) -> dict[str, Any]:
    return write_shape(c) | {
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": c.feed_forward_width,
        "num_experts": c.experts,
        "num_experts_per_tok": c.chosen_experts,
        "norm_topk_prob": c.normalized_experts,
    }


def qwen3_moe_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    yield from names(c, QWEN3_MOE_NAMES)
    for layer in range(c.layers):
        mlp = f"model.layers.{layer}.mlp"
        yield Tensor(("layers", "experts", "router"), layer, None, f"{mlp}.gate.weight", True)
        for path, name in EXPERT_NAMES.items():
            for expert in range(c.experts):
                whole = f"{mlp}.experts.{expert}.{name}"
                yield Tensor(("layers", *path), layer, expert, whole, True)


QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    classifier="Qwen3MoeForSequenceClassification",
    read_config=read_qwen3_moe,
    write_config=write_qwen3_moe,
    names=qwen3_moe_tensors,
)
