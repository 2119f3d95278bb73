"""Qwen3-Next and Qwen 3.5: gated delta networks (2412.06464) in three of four layers.

The others have attention with a gate, and a quarter of each head is rotated. All norms are centered
but the gated one.

* Qwen3-Next: experts, and a weighted shared expert. It stores each head's projections together.
* Qwen 3.5: the same with projections one after another, with experts or without.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.decoder_config import DeltaConfig, options
from rl4p.model.families.expert_keys import (
    KeyGroup,
    Options,
    biases,
    counts,
    fixed,
    normalized,
    only,
    shared_width,
    steps,
)
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, TensorPart, names, rows
from rl4p.model.families.keys import Keys
from rl4p.model.families.sparse import NORMED, Sparse

MIXERS = {"linear_attention": "delta", "full_attention": "attention"}


def read_layer_types(keys: Keys, options: Options) -> Options:
    """Reads layer_types, or else every how many layers one has attention."""
    layers, every = options["layers"], keys.size("full_attention_interval", 4)
    types = keys.get("layer_types", list, []) or [
        "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)
    ]
    for name in types:
        if name not in [*MIXERS]:  # an entry may be a list, which has no hash
            raise keys.refuse(f"layer type {name!r}")
    if len(types) != layers:
        raise keys.refuse(f"layer_types with {len(types)} entries for {layers} layers")
    return {"mixers": tuple(MIXERS[name] for name in types)}


def write_layer_types(c: DecoderConfig) -> dict[str, Any]:
    types = {mixer: name for name, mixer in MIXERS.items()}
    return {"layer_types": [types[kind.mixer] for kind in c.kinds]}


def read_delta(keys: Keys, _: Options) -> Options:
    key_heads = keys.size("linear_num_key_heads", 16)
    value_heads = keys.size("linear_num_value_heads", 32)
    kernel = keys.size("linear_conv_kernel_dim", 4)
    if value_heads % key_heads:
        raise keys.refuse(
            f"linear_num_value_heads {value_heads} with linear_num_key_heads {key_heads}"
        )
    if kernel < 2:
        raise keys.refuse(f"linear_conv_kernel_dim {kernel}")
    delta = DeltaConfig(
        key_heads=key_heads,
        value_heads=value_heads,
        key_width=keys.size("linear_key_head_dim", 128),
        value_width=keys.size("linear_value_head_dim", 128),
        kernel=kernel,
    )
    return {"delta": delta}


def write_delta(c: DecoderConfig) -> dict[str, Any]:
    own = options(c.delta)
    return {
        "linear_num_key_heads": own.key_heads,
        "linear_num_value_heads": own.value_heads,
        "linear_key_head_dim": own.key_width,
        "linear_value_head_dim": own.value_width,
        "linear_conv_kernel_dim": own.kernel,
    }


DELTA = (
    KeyGroup(read_layer_types, write_layer_types),
    KeyGroup(read_delta, write_delta),
    biases("attention_bias", "attention_bias", "output_bias"),
    only("attn_output_gate", True),
    fixed(attention_gate=True, query_key_norm="head", centered_norm=True),
)

IN_LAYER = NORMED | {
    ("attention_gate", "kernel"): LAYER_NAMES["query", "kernel"],
    ("delta", "decay"): "linear_attn.A_log",
    ("delta", "step_bias"): "linear_attn.dt_bias",
    ("delta", "scale"): "linear_attn.norm.weight",
    ("delta", "output", "kernel"): "linear_attn.out_proj.weight",
    **{
        ("delta", f"{name}_convolution"): "linear_attn.conv1d.weight"
        for name in ("query", "key", "value")
    },
}
APART = {"gate": "in_proj_z", "strength": "in_proj_b", "step": "in_proj_a"}
BY_HEAD = dict.fromkeys(("query", "key", "value", "gate"), "in_proj_qkvz") | dict.fromkeys(
    ("strength", "step"), "in_proj_ba"
)


def tensors(c: DecoderConfig, *, experts: ExpertNames, by_head: bool) -> Iterator[Tensor]:
    """Yields every tensor; `by_head` says whether a key head's projections stand together."""
    own, h = options(c.delta), c.head_width
    keys, values = own.key_heads * own.key_width, own.value_heads * own.value_width
    sizes = {"query": keys, "key": keys, "value": values}
    modules = BY_HEAD if by_head else dict.fromkeys(sizes, "in_proj_qkv") | APART
    parts = rows({("delta", f"{name}_convolution"): size for name, size in sizes.items()})
    if by_head:
        parts |= runs({**sizes, "gate": values}, own.key_heads)
        parts |= runs(dict.fromkeys(("strength", "step"), own.value_heads), own.key_heads)
    else:
        parts |= rows({("delta", name, "kernel"): size for name, size in sizes.items()})
    for start, name in enumerate(("query", "attention_gate")):
        parts[name, "kernel"] = TensorPart(0, start * h, 2 * h, 2 * h * c.heads, h)
    kernels = {
        ("delta", name, "kernel"): f"linear_attn.{module}.weight"
        for name, module in modules.items()
    }
    yield from names(c, IN_LAYER | kernels | experts.in_layer(c), parts)
    yield from experts.tensors(c)


def runs(sizes: dict[str, int], heads: int) -> dict[tuple[str, ...], TensorPart]:
    """Returns where the kernels stand in a matrix that has the rows of all for each head."""
    of_head = rows({("delta", name, "kernel"): size // heads for name, size in sizes.items()})
    return {
        path: TensorPart(0, part.start, part.size, part.size * heads, sizes[path[1]] // heads)
        for path, part in of_head.items()
    }


def family(
    model_type: str, stem: str, *key_groups: KeyGroup, by_head: bool = False, **more: Any
) -> Family:
    experts = ExpertNames(shared="mlp.shared_expert")
    sparse = Sparse(
        stem=stem,
        head_width=256,
        rotated=lambda *_: 0.25,
        key_groups=(*key_groups, *DELTA),
        unused=r"mtp\..*",
        **more,
    )
    return replace(
        sparse.family(model_type), names=partial(tensors, experts=experts, by_head=by_head)
    )


COUNTS = counts("num_experts", "num_local_experts", width="moe_intermediate_size")
SHARED = shared_width("shared_expert_intermediate_size", weighted=True)
DELTA_FAMILIES = (
    family("qwen3_next", "Qwen3Next", COUNTS, normalized(True), SHARED, steps(), by_head=True),
    replace(family("qwen3_5_text", "Qwen3_5"), classifier="Qwen3_5TextForSequenceClassification"),
    family(
        "qwen3_5_moe_text",
        "Qwen3_5Moe",
        counts("num_experts", "num_local_experts"),
        fixed(normalized_experts=True),
        SHARED,
        feed_forward="moe_intermediate_size",
    ),
)
