"""Families with latent attention: DeepSeek and its descendants, with and without experts.

* DeepSeek-V3 (2412.19437), Kimi K2 (2507.20534), GLM-4.7-Flash: a sigmoid router, corrected and
  within groups, shared experts, and dense layers.
* DeepSeek-V2 (2405.04434): a softmax router, within groups chosen by their best expert or without.
* Mistral 4: as DeepSeek-V3 with a softmax router, and queries that grow with their positions.
* Youtu-LLM: no experts. MiniCPM3 (2404.06395): no experts, and factors as Granite's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.expert_keys import (
    GROUPED,
    KeyGroup,
    Options,
    all_but_first,
    biases,
    counts,
    first_dense,
    fixed,
    grouped,
    layer_kinds,
    normalized,
    only,
    shared,
)
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, names
from rl4p.model.families.keys import Keys
from rl4p.model.families.latent import (
    latent_names,
    read_latent,
    without_growth,
    write_growth,
    write_latent,
)
from rl4p.model.router import Router

FEED_FORWARD = {path: name for path, name in LAYER_NAMES.items() if name.startswith("mlp.")}
NEXT_LAYERS = r"model\.layers\.{layers}\..*"  # of heads that predict several tokens


@dataclass(frozen=True, kw_only=True)
class Latent:
    """The differences of a family from a decoder with latent attention, and no experts.

    Attributes:
      stem: the first part of the names of its classes.
      key_groups: its further keys, in the order in which they are read.
      tied: its default of tie_word_embeddings.
      long, narrow_values: of `read_latent`.
      grows: whether queries grow with their positions (`without_growth`).
      experts: the names of the tensors of experts.
    """

    stem: str
    key_groups: tuple[KeyGroup, ...]
    tied: bool = False
    long: bool = False
    narrow_values: bool = False
    grows: bool = False
    experts: ExpertNames = field(default_factory=ExpertNames)

    def family(self, model_type: str) -> Family:
        return Family(
            model_type=model_type,
            architecture=f"{self.stem}ForCausalLM",
            classifier=f"{self.stem}ForSequenceClassification",
            read_config=partial(read, model_type, self),
            write_config=partial(write, self),
            names=partial(tensors, self.experts),
            unused=NEXT_LAYERS,
        )


def read(model_type: str, latent: Latent, keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    keys, growth = without_growth(keys) if latent.grows else (keys, 0.0)
    options = read_latent(
        keys, long=latent.long, narrow_values=latent.narrow_values, whole_heads=latent.grows
    )
    options["latent"] = replace(options["latent"], query_growth=growth)
    for group in latent.key_groups:
        options |= group.read(keys, options)
    tied = keys.get("tie_word_embeddings", bool, latent.tied)
    return DecoderConfig(family=model_type, tied_embedding=tied, **options)


def write(latent: Latent, c: DecoderConfig) -> dict[str, Any]:
    keys = write_growth(c, write_latent(c)) if latent.grows else write_latent(c)
    for group in latent.key_groups:
        keys |= group.write(c)
    return keys


def tensors(experts: ExpertNames, c: DecoderConfig) -> Iterator[Tensor]:
    dense = any(kind.feed_forward == "gated" for kind in c.kinds)
    own = latent_names(c) | (FEED_FORWARD if dense else {}) | experts.in_layer(c)
    yield from names(c, own)
    yield from experts.tensors(c)


def accepts(key: str, *values: Any) -> KeyGroup:
    """Returns the group of one key that transformers ignores, and whose `values` are harmless."""

    def read(keys: Keys, _: Options) -> Options:
        if keys.config.get(key) not in (None, *values):
            raise keys.refuse(f"{key} {keys.config.get(key)!r}")
        return {}

    return KeyGroup(read, lambda _: {})


def read_choice(keys: Keys, options: Options) -> Options:
    """Reads the router of DeepSeek-V2, whose groups have an effect with one method only."""
    method = keys.get("topk_method", str, "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise keys.refuse(f"topk_method {method!r}")
    if method == "group_limited_greedy":
        return grouped(group_score="largest", exact=True).read(keys, options)
    factor = keys.get("routed_scaling_factor", float, 1.0)
    _ = keys.config.get("n_group"), keys.config.get("topk_group")  # without effect
    return {"router": Router(group_score="largest", exact=True, factor=factor)}


def write_choice(c: DecoderConfig) -> dict[str, Any]:
    method = "greedy" if c.router.groups == 1 else "group_limited_greedy"
    return GROUPED.write(c) | {"topk_method": method}


def read_factors(keys: Keys, options: Options) -> Options:
    """Reads the factors of MiniCPM3; null is no factor, and not their default."""
    root, width = math.sqrt(options["layers"]), options["width"]

    def factor(key: str, usual: float, neutral: float) -> float:
        none = key in keys.config and keys.config.get(key) is None
        return neutral if none else keys.get(key, float, usual)

    return {
        "embedding_multiplier": keys.get("scale_emb", float, 12.0),
        "residual_multiplier": factor("scale_depth", 1.4, root) / root,
        "logits_multiplier": factor("dim_model_base", 256, width) / width,
    }


def write_factors(c: DecoderConfig) -> dict[str, Any]:
    root = math.sqrt(c.layers)
    depth = c.residual_multiplier * root
    rounded = round(depth, 6)
    return {
        "scale_emb": c.embedding_multiplier,
        "scale_depth": rounded if rounded / root == c.residual_multiplier else depth,
        "dim_model_base": round(c.logits_multiplier * c.width),
    }


INTERLEAVED = KeyGroup(
    lambda keys, _: {"interleaved_rope": keys.get("rope_interleave", bool, True)},
    lambda c: {"rope_interleave": c.interleaved_rope},
)
COUNTS = counts("n_routed_experts", "num_local_experts", width="moe_intermediate_size")
V3 = (
    INTERLEAVED,
    COUNTS,
    GROUPED,
    shared("n_shared_experts"),
    normalized(True),
    accepts("scoring_func", "sigmoid"),
    accepts("topk_method", "noaux_tc"),
    accepts("moe_layer_freq", 1),
)
TABLE = {
    "deepseek_v3": Latent(stem="DeepseekV3", key_groups=(*V3, first_dense(3))),
    "glm4_moe_lite": Latent(
        stem="Glm4MoeLite",
        key_groups=(*V3, layer_kinds(all_but_first), accepts("first_k_dense_replace", 1)),
    ),
    "deepseek_v2": Latent(
        stem="DeepseekV2",
        key_groups=(
            fixed(interleaved_rope=True),
            counts("n_routed_experts", "num_experts", width="moe_intermediate_size"),
            KeyGroup(read_choice, write_choice),
            shared("n_shared_experts"),
            accepts("norm_topk_prob", False),
            accepts("scoring_func", "softmax"),
            accepts("moe_layer_freq", 1),
            only("mlp_bias", False),
            first_dense(0),
        ),
    ),
    "mistral4": Latent(
        stem="Mistral4",
        key_groups=(
            INTERLEAVED,
            COUNTS,
            grouped(epsilon=1e-20),
            shared("n_shared_experts"),
            normalized(True),
            first_dense(0),
        ),
        grows=True,
        experts=ExpertNames(fused=("gate_up_proj", "down_proj")),
    ),
    "youtu": Latent(stem="Youtu", key_groups=(INTERLEAVED,), tied=True),
    "minicpm3": Latent(
        stem="MiniCPM3",
        key_groups=(KeyGroup(read_factors, write_factors), biases("mlp_bias", "feed_forward_bias")),
        tied=True,
        long=True,
        narrow_values=True,
    ),
}
LATENT = tuple(family.family(model_type) for model_type, family in TABLE.items())
