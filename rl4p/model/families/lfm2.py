"""LFM2 (2511.23404): gated convolutions, and attention in a few layers.

* Queries and keys are normed in each head. No projection of attention has a bias.
* LFM2 with experts: a sigmoid router with corrections, behind a few dense layers.
"""

from collections.abc import Iterator
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.decoder_config import ConvolutionConfig, Mixer, options
from rl4p.model.families.expert_keys import counts, normalized
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import Family, Tensor, names, rows
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.router import Router

LFM2_NAMES = {
    ("attention_norm", "scale"): "operator_norm.weight",
    ("feed_forward_norm", "scale"): "ffn_norm.weight",
    ("query", "kernel"): "self_attn.q_proj.weight",
    ("key", "kernel"): "self_attn.k_proj.weight",
    ("value", "kernel"): "self_attn.v_proj.weight",
    ("output", "kernel"): "self_attn.out_proj.weight",
    ("query_norm", "scale"): "self_attn.q_layernorm.weight",
    ("key_norm", "scale"): "self_attn.k_layernorm.weight",
    ("gate", "kernel"): "feed_forward.w1.weight",
    ("up", "kernel"): "feed_forward.w3.weight",
    ("down", "kernel"): "feed_forward.w2.weight",
    ("convolution", "convolution"): "conv.conv.weight",
}
PROJECTIONS = {
    "input_gate": "conv.in_proj",
    "output_gate": "conv.in_proj",
    "value": "conv.in_proj",
    "output": "conv.out_proj",
}
EXPERTS = ExpertNames(
    router="feed_forward.gate.weight",
    correction="feed_forward.expert_bias",
    experts="feed_forward.experts",
    each={"gate": "w1", "up": "w3", "down": "w2"},
)
COUNTS, NORMALIZED = counts("num_experts", None, width="moe_intermediate_size"), normalized(True)
MIXERS: dict[str, Mixer] = {"conv": "convolution", "full_attention": "attention"}


def read_lfm2(keys: Keys) -> DecoderConfig:
    return DecoderConfig(family="lfm2", **read_shared(keys, feed_forward_width(keys)))


def read_shared(keys: Keys, width: int) -> dict[str, Any]:
    """Returns the options of both families, given the width of dense feed-forwards."""
    keys.size("num_key_value_heads")  # whose default here is not the number of heads
    shape = keys.shape(epsilon="norm_eps") | {"feed_forward_width": width}
    tied = keys.get("tie_word_embeddings", bool, True)
    return {
        **shape,
        **keys.rope(theta=1_000_000.0),
        "tied_embedding": keys.get("tie_embedding", bool, tied),
        "mixers": read_mixers(keys, shape["layers"]),
        "convolution": ConvolutionConfig(
            kernel=keys.size("conv_L_cache", 3), bias=keys.get("conv_bias", bool, False)
        ),
        "query_key_norm": "head",
        "attention_bias": False,
    }


def read_mixers(keys: Keys, layers: int) -> tuple[Mixer, ...]:
    """Returns the mixers by layer_types, or else by the older full_attn_idxs."""
    attention = keys.get("full_attn_idxs", list, [*range(layers)])
    usual = ["full_attention" if i in attention else "conv" for i in range(layers)]
    types = keys.get("layer_types", list, usual)
    return keys.by_type(types, MIXERS, layers)


def feed_forward_width(keys: Keys) -> int:
    """Returns two thirds of intermediate_size, rounded up to a multiple, unless it is as it is."""
    width = keys.size("block_ff_dim", keys.size("intermediate_size", 12288))
    multiple, factor = keys.size("block_multiple_of", 256), 1.0
    if keys.config.get("block_ffn_dim_multiplier", 1.0) is not None:
        factor = keys.get("block_ffn_dim_multiplier", float, 1.0)
    if not keys.get("block_auto_adjust_ff_dim", bool, True):
        return width
    width = int(factor * int(2 * width / 3))
    return -(-width // multiple) * multiple


def write_lfm2(c: DecoderConfig) -> dict[str, Any]:
    return write_mixers(c) | {
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": c.feed_forward_width,
    }


def write_mixers(c: DecoderConfig) -> dict[str, Any]:
    """Returns the keys of both families."""
    shape, types = write_shape(c), {mixer: name for name, mixer in MIXERS.items()}
    return shape | {
        "norm_eps": shape.pop("rms_norm_eps"),
        "conv_L_cache": options(c.convolution).kernel,
        "conv_bias": options(c.convolution).bias,
        "layer_types": [types[kind.mixer] for kind in c.kinds],
        "tie_embedding": c.tied_embedding,
    }


def lfm2_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    own: dict[tuple[str, ...], str] = {**LFM2_NAMES}
    for projection, name in PROJECTIONS.items():
        own["convolution", projection, "kernel"] = f"{name}.weight"
        if options(c.convolution).bias:
            own["convolution", projection, "bias"] = f"{name}.bias"
    if options(c.convolution).bias:
        own["convolution", "convolution_bias"] = "conv.conv.bias"
    fused = [("convolution", name, "kernel") for name in ("input_gate", "output_gate", "value")]
    for tensor in names(c, own, rows(dict.fromkeys(fused, c.width))):
        whole = tensor.name.replace("model.norm.", "model.embedding_norm.")
        yield tensor._replace(name=whole)
    if c.experts:
        yield from EXPERTS.tensors(c)


LFM2 = Family(
    model_type="lfm2",
    architecture="Lfm2ForCausalLM",
    classifier="Lfm2ForSequenceClassification",
    read_config=read_lfm2,
    write_config=write_lfm2,
    names=lfm2_tensors,
)


def read_lfm2_moe(keys: Keys) -> DecoderConfig:
    options = read_shared(keys, keys.size("intermediate_size"))
    layers, dense = options["layers"], keys.get("num_dense_layers", int, 2)
    if not 0 <= dense < layers:
        raise keys.refuse(f"num_dense_layers {dense} of {layers} layers")
    return DecoderConfig(
        family="lfm2_moe",
        **options,
        feed_forwards=("gated",) * dense + ("experts",) * (layers - dense),
        **COUNTS.read(keys, options),
        **NORMALIZED.read(keys, options),
        router=Router(
            score="sigmoid",
            corrected=keys.get("use_expert_bias", bool, True),
            factor=keys.get("routed_scaling_factor", float, 1.0),
            epsilon=1e-6,
        ),
    )


def write_lfm2_moe(c: DecoderConfig) -> dict[str, Any]:
    return write_mixers(c) | {
        "num_dense_layers": [kind.feed_forward for kind in c.kinds].index("experts"),
        **COUNTS.write(c),
        **NORMALIZED.write(c),
        "use_expert_bias": c.router.corrected,
        "routed_scaling_factor": c.router.factor,
    }


LFM2_MOE = Family(
    model_type="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    classifier="Lfm2MoeForSequenceClassification",
    read_config=read_lfm2_moe,
    write_config=write_lfm2_moe,
    names=lfm2_tensors,
)
