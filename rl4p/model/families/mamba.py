"""Nemotron-H, Granite 4 and Bamba: Mamba-2 layers (2405.21060), and attention in a few layers.

* Nemotron-H (2504.03624): a layer is one block, which is Mamba-2, attention, a feed-forward without
  a gate (the square of relu), or, since Nemotron 3 (2512.20856), experts of that kind.
* Granite 4: a mixer and a feed-forward in each layer, Granite's factors (2408.13359), and possibly
  experts.
* Bamba: a mixer and a feed-forward in each layer. Attention rotates half of each head.

Attention has no rotations else, but for Granite's position_embedding_type "rope".
"""

import math
from collections.abc import Iterator
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.decoder_config import FeedForward, MambaConfig, Mixer, options
from rl4p.model.families.dense import read_multipliers, reciprocal, write_multipliers
from rl4p.model.families.expert_keys import GROUPED, KeyGroup, counts, normalized, shared_width
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, TensorPart, names, rows
from rl4p.model.families.keys import Keys, write_shape

Path = tuple[str, ...]
ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
HALF = 0.5  # of each head of Bamba
LEAST_STEP = 0.001  # Nemotron's default of time_step_min


def mamba_names(c: MambaConfig, start: str) -> dict[Path, str]:
    """Returns the names of a Mamba-2 mixer, after a start such as "mamba."."""
    own = {
        **{("mamba", name, "kernel"): "in_proj.weight" for name in ("gate", "step", *MIXED)},
        ("mamba", "output", "kernel"): "out_proj.weight",
        **{("mamba", f"{name}_convolution"): "conv1d.weight" for name in MIXED},
        ("mamba", "decay"): "A_log",
        ("mamba", "step_bias"): "dt_bias",
        ("mamba", "skip"): "D",
        ("mamba", "scale"): "norm.weight",
    }
    if c.convolution_bias:
        own |= {("mamba", f"{name}_bias"): "conv1d.bias" for name in MIXED}
    if c.projection_bias:
        biases = {path: name for path, name in own.items() if path[-1] == "kernel"}
        own |= {(*path[:-1], "bias"): f"{name[:-6]}bias" for path, name in biases.items()}
    return {path: start + name for path, name in own.items()}


MIXED = ("value", "key", "query")  # in the order of the files, where they are x, B and C


def mamba_parts(c: MambaConfig) -> dict[Path, TensorPart]:
    """Returns where the parameters stand in the fused tensors."""
    inner, shared = c.heads * c.head_width, c.groups * c.state
    sizes = dict(zip(MIXED, (inner, shared, shared), strict=True))
    projected = {"gate": inner, **sizes, "step": c.heads}
    return {
        **rows({("mamba", name, "kernel"): size for name, size in projected.items()}),
        **rows({("mamba", f"{name}_convolution"): size for name, size in sizes.items()}),
        **rows({("mamba", f"{name}_bias"): size for name, size in sizes.items()}),
    }


def checked_groups(keys: Keys, c: MambaConfig, heads: str, groups: str) -> MambaConfig:
    if c.heads % c.groups:
        raise keys.refuse(f"{heads} {c.heads}, which is not a multiple of {groups} {c.groups},")
    return c


# From a layer type, or a letter of the older hybrid_override_pattern, to what the block is.
BLOCKS: dict[str, tuple[Mixer, FeedForward]] = {
    "linear_attention": ("mamba", "none"),
    "full_attention": ("attention", "none"),
    "mlp": ("none", "gated"),
    "moe": ("none", "experts"),
}
OLDER = {"mamba": "linear_attention", "attention": "full_attention"}
LETTERS = dict(zip("M*-E", BLOCKS, strict=True))
NEMOTRON_NAMES = {
    ("attention_norm", "scale"): "norm.weight",
    ("feed_forward_norm", "scale"): "norm.weight",
    **{
        (projection, "kernel"): f"mixer.{name}.weight"
        for projection, name in {
            "query": "q_proj",
            "key": "k_proj",
            "value": "v_proj",
            "output": "o_proj",
            "up": "up_proj",
            "down": "down_proj",
            "experts_input": "fc1_latent_proj",
            "experts_output": "fc2_latent_proj",
        }.items()
    },
}


def read_latent(keys: Keys, _: Any) -> dict[str, Any]:
    """Returns the width between two projections where the experts of large models are."""
    present = keys.config.get("moe_latent_size") is not None
    return {"expert_input": keys.size("moe_latent_size") if present else None}


NEMOTRON_EXPERTS = ExpertNames(
    router="mixer.gate.weight",
    correction="mixer.gate.e_score_correction_bias",
    experts="mixer.experts",
    each={"up": "up_proj", "down": "down_proj"},
    shared="mixer.shared_experts",
)
NEMOTRON_KEYS = (
    counts("n_routed_experts", "num_local_experts", width="moe_intermediate_size"),
    normalized(True),
    GROUPED,
    shared_width("moe_shared_expert_intermediate_size", weighted=False),
    KeyGroup(read_latent, lambda c: {"moe_latent_size": c.expert_input}),
)
NEMOTRON_UNUSED = (
    *("chunk_size", "expand", "use_mamba_kernels", "mamba_ssm_cache_dtype", "num_logits_to_keep"),
    *("time_step_limit", "time_step_max", "time_step_floor"),
    *("rescale_prenorm_residual", "residual_in_fp32", "rms_norm_eps"),
    *("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
    *("n_shared_experts", "moe_shared_expert_overlap"),
    *ROPE,
)
NEMOTRON_UNUSED_EXPERTS = (  # by a model without experts
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *(
        "moe_shared_expert_intermediate_size",
        "moe_latent_size",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
    ),
)


def read_blocks(keys: Keys) -> tuple[tuple[Mixer, FeedForward], ...]:
    pattern = keys.get("hybrid_override_pattern", str, "")
    types = keys.get("layers_block_type", list, [LETTERS.get(x, x) for x in pattern])
    types = [OLDER.get(x, x) if isinstance(x, str) else x for x in types]
    if not types:
        raise keys.refuse("no layers_block_type")
    return keys.by_type(types, BLOCKS, keys.size("num_hidden_layers", len(types)))


def read_nemotron_h(keys: Keys) -> DecoderConfig:
    for key, only in {
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "layer_types": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mamba_proj_bias": False,
        **dict.fromkeys(("mamba_n_groups", "mamba_d_conv", "mamba_dt_min", "mamba_conv_bias")),
    }.items():
        keys.must_be(key, only)
    keys.unused(*NEMOTRON_UNUSED, *NEMOTRON_UNUSED_EXPERTS)
    blocks = read_blocks(keys)
    layers = len(blocks)
    keys.size("num_key_value_heads")  # whose default here is not the number of heads
    shape = keys.shape(head_width=128, epsilon="layer_norm_epsilon", layers=layers)
    mixers, feed_forwards = zip(*blocks, strict=True)
    options: dict[str, Any] = {"feed_forward_bias": keys.get("mlp_bias", bool, False)}
    if "experts" in feed_forwards:
        options |= read_nemotron_experts(keys)
    return DecoderConfig(
        family="nemotron_h",
        **shape,
        **options,
        mamba=read_nemotron_mamba(keys),
        mixers=mixers,
        feed_forwards=feed_forwards,
        unrotated=(True,) * layers,
        activation="relu2",
        ungated=True,
        tied_embedding=False,
        attention_bias=False,
    )


def read_nemotron_mamba(keys: Keys) -> MambaConfig:
    """Reads the options of Mamba-2 layers.

    transformers cuts steps below time_step_min, and not by time_step_limit; while it decodes token
    by token it cuts none.
    """
    mamba = MambaConfig(
        heads=keys.size("mamba_num_heads", 128),
        head_width=keys.size("mamba_head_dim", 64),
        groups=keys.size("n_groups", 8),
        state=keys.size("ssm_state_size", 128),
        kernel=keys.size("conv_kernel", 4),
        projection_bias=keys.get("use_bias", bool, False),
        convolution_bias=keys.get("use_conv_bias", bool, True),
        least_step=keys.get("time_step_min", float, LEAST_STEP),
    )
    return checked_groups(keys, mamba, "mamba_num_heads", "n_groups")


def read_nemotron_experts(keys: Keys) -> dict[str, Any]:
    keys.must_be("mlp_bias", False)
    options: dict[str, Any] = {}
    for group in NEMOTRON_KEYS:
        options |= group.read(keys, options)
    return options


def write_nemotron_h(c: DecoderConfig) -> dict[str, Any]:
    types = {block: name for name, block in BLOCKS.items()}
    shape, mamba = write_shape(c), options(c.mamba)
    written = {
        "num_hidden_layers": c.layers,
        "layers_block_type": [types[kind.mixer, kind.feed_forward] for kind in c.kinds],
        "hybrid_override_pattern": None,
        "layer_norm_epsilon": shape.pop("rms_norm_eps"),
        "num_nextn_predict_layers": 0,  # an export has no layers that predict several tokens
        "attention_bias": False,
        "mlp_hidden_act": "relu2",
        "mlp_bias": c.feed_forward_bias,
        "mamba_num_heads": mamba.heads,
        "mamba_head_dim": mamba.head_width,
        "n_groups": mamba.groups,
        "ssm_state_size": mamba.state,
        "conv_kernel": mamba.kernel,
        "use_bias": mamba.projection_bias,
        "use_conv_bias": mamba.convolution_bias,
        "time_step_min": mamba.least_step,
    }
    for group in NEMOTRON_KEYS if c.experts else ():
        written |= group.write(c)
    return shape | written


def nemotron_h_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    mamba = options(c.mamba)
    own = {**NEMOTRON_NAMES, **mamba_names(mamba, "mixer."), **NEMOTRON_EXPERTS.in_layer(c)}
    for tensor in (*names(c, own, mamba_parts(mamba)), *NEMOTRON_EXPERTS.tensors(c)):
        name = tensor.name.replace("model.embed_tokens.", "backbone.embeddings.")
        name = name.replace("model.norm.", "backbone.norm_f.")
        yield tensor._replace(name=name.replace("model.layers.", "backbone.layers."))


NEMOTRON_H = Family(
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    classifier="NemotronHForSequenceClassification",
    read_config=read_nemotron_h,
    write_config=write_nemotron_h,
    names=nemotron_h_tensors,
    unused=r"mtp\..*",
)


GRANITE_EXPERTS = ExpertNames(
    router="block_sparse_moe.router.layer.weight",
    experts="block_sparse_moe",
    fused=("input_linear.weight", "output_linear.weight"),
)
GRANITE_COUNTS = counts("num_local_experts", None)
GRANITE_MIXERS: dict[str, Mixer] = {"linear_attention": "mamba", "full_attention": "attention"}


def read_granite_hybrid(keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    keys.must_be("layers_block_type", None)
    keys.unused("mamba_chunk_size", "shared_intermediate_size", "num_experts_per_tok")
    experts = keys.get("num_local_experts", int, 8)
    inner = "shared_intermediate_size" if experts == 0 else "intermediate_size"
    shape = keys.shape(feed_forward=inner)
    layers = shape["layers"]
    types = keys.get("layer_types", list, ["linear_attention"] * layers)
    types = [OLDER.get(x, x) if isinstance(x, str) else x for x in types]
    options = keys.biases() | read_multipliers(keys, attention=1.0, logits=reciprocal)
    if keys.config.get("position_embedding_type") == "rope":
        options |= keys.rope()
    else:
        keys.must_be("position_embedding_type", "nope")
        keys.unused(*ROPE)
        options["unrotated"] = (True,) * layers
    if experts:
        options |= GRANITE_COUNTS.read(keys, {}) | {
            "shared_width": keys.size("shared_intermediate_size", 1024),
            "normalized_experts": True,
        }
    return DecoderConfig(
        family="granitemoehybrid",
        **shape,
        **options,
        mixers=keys.by_type(types, GRANITE_MIXERS, layers),
        mamba=read_granite_mamba(keys, shape["width"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
    )


def read_granite_mamba(keys: Keys, width: int) -> MambaConfig:
    heads, inner = keys.size("mamba_n_heads", 128), width * keys.size("mamba_expand", 2)
    if keys.config.get("mamba_d_head", "auto") != "auto":
        keys.must_be("mamba_d_head", inner / heads)
    if inner % heads:
        raise keys.refuse(f"mamba_n_heads {heads}, which does not divide {inner} channels,")
    least, most = limits(keys)
    mamba = MambaConfig(
        heads=heads,
        head_width=inner // heads,
        groups=keys.size("mamba_n_groups", 1),
        state=keys.size("mamba_d_state", 256),
        kernel=keys.size("mamba_d_conv", 4),
        projection_bias=keys.get("mamba_proj_bias", bool, False),
        convolution_bias=keys.get("mamba_conv_bias", bool, True),
        least_step=least,
        most_step=most,
    )
    return checked_groups(keys, mamba, "mamba_n_heads", "mamba_n_groups")


def limits(keys: Keys) -> tuple[float, float]:
    """Returns the two numbers of time_step_limit; transformers 5 writes infinity as a section."""
    values = keys.get("time_step_limit", list, [0.0, math.inf])
    numbers = [math.inf if x == {"__float__": "Infinity"} else x for x in values]
    if len(numbers) != 2 or not all(type(x) in (int, float) for x in numbers):
        raise keys.refuse(f"time_step_limit {values!r}")
    return float(numbers[0]), float(numbers[1])


def write_granite_hybrid(c: DecoderConfig) -> dict[str, Any]:
    rotated = not any(c.unrotated)
    return {
        **write_shape(c),
        **write_multipliers(c, logits=reciprocal),
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        # the words of the published folders, which transformers 4 and 5 read: mamba and attention
        "layer_types": [kind.mixer for kind in c.kinds],
        "position_embedding_type": "rope" if rotated else None,
        **GRANITE_COUNTS.write(c),
        "shared_intermediate_size": c.shared_width or c.feed_forward_width,
        **write_granite_mamba(c),
    }


def write_granite_mamba(c: DecoderConfig) -> dict[str, Any]:
    mamba = options(c.mamba)
    return {
        "mamba_n_heads": mamba.heads,
        "mamba_d_head": mamba.head_width,
        "mamba_expand": mamba.heads * mamba.head_width // c.width,
        "mamba_n_groups": mamba.groups,
        "mamba_d_state": mamba.state,
        "mamba_d_conv": mamba.kernel,
        "mamba_proj_bias": mamba.projection_bias,
        "mamba_conv_bias": mamba.convolution_bias,
        "time_step_limit": [mamba.least_step, mamba.most_step],
    }


def granite_hybrid_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    mamba, owner = options(c.mamba), ("shared",) if c.experts else ()
    fused = [(*owner, name, "kernel") for name in ("gate", "up")]
    own = {path: name for path, name in LAYER_NAMES.items() if not name.startswith("mlp.")}
    own |= dict.fromkeys(fused, "shared_mlp.input_linear.weight")
    own[*owner, "down", "kernel"] = "shared_mlp.output_linear.weight"
    width = c.shared_width or c.feed_forward_width
    parts = rows(dict.fromkeys(fused, width)) | mamba_parts(mamba)
    yield from names(c, own | mamba_names(mamba, "mamba."), parts)
    if c.experts:
        yield from GRANITE_EXPERTS.tensors(c)


GRANITE_HYBRID = Family(
    model_type="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    classifier="GraniteMoeHybridForSequenceClassification",
    read_config=read_granite_hybrid,
    write_config=write_granite_hybrid,
    names=granite_hybrid_tensors,
)


def read_bamba(keys: Keys) -> DecoderConfig:
    for key, only in {
        "hidden_act": "silu",
        "layer_types": None,
        "layers_block_type": None,
        "sliding_window": None,
        "partial_rotary_factor": HALF,
    }.items():
        keys.must_be(key, only)
    keys.unused("mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient")
    shape = keys.shape()
    rope = keys.rope(head_width=shape["head_width"], rotated=HALF)
    if rope["rotary_width"] != int(shape["head_width"] * HALF):  # transformers 4 has no other
        raise keys.refuse(f"{rope['rotary_width']} rotated elements of {shape['head_width']}")
    layers, attends = shape["layers"], keys.get("attn_layer_indices", list, [])
    return DecoderConfig(
        family="bamba",
        **shape,
        **rope,
        **keys.biases(),
        feed_forward_bias=keys.get("mlp_bias", bool, False),
        mixers=tuple("attention" if i in attends else "mamba" for i in range(layers)),
        mamba=read_granite_mamba(keys, shape["width"]),
        tied_embedding=keys.get("tie_word_embeddings", bool, False),
    )


def write_bamba(c: DecoderConfig) -> dict[str, Any]:
    return {
        **write_shape(c),
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "mlp_bias": c.feed_forward_bias,
        "attn_layer_indices": [i for i, mixer in enumerate(c.mixers) if mixer == "attention"],
        **write_granite_mamba(c),
    }


def bamba_tensors(c: DecoderConfig) -> Iterator[Tensor]:
    mamba, renamed = options(c.mamba), {"mlp.": "feed_forward.", "post_attention_": "pre_ff_"}
    own = LAYER_NAMES | mamba_names(mamba, "mamba.")
    for old, new in renamed.items():
        own = {path: name.replace(old, new) for path, name in own.items()}
    for tensor in names(c, own, mamba_parts(mamba)):
        yield tensor._replace(name=tensor.name.replace("model.norm.", "model.final_layernorm."))


BAMBA = Family(
    model_type="bamba",
    architecture="BambaForCausalLM",
    classifier="BambaForSequenceClassification",
    read_config=read_bamba,
    write_config=write_bamba,
    names=bamba_tensors,
)
