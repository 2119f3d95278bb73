"""Families with latent attention: DeepSeek and its descendants, with and without experts.

* DeepSeek-V3 (2412.19437), Kimi K2 (2507.20534), GLM-4.7-Flash: a sigmoid router, corrected and
  within groups, shared experts, and dense layers.
* DeepSeek-V2 (2405.04434): a softmax router, within groups chosen by their best expert or without.
* Youtu-LLM: no experts. MiniCPM3 (2404.06395): no experts, and factors as Granite's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.expert_keys import (
    GROUPED,
    Options,
    Topic,
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
from rl4p.model.families.latent import latent_names, read_latent, write_latent

FEED_FORWARD = {path: name for path, name in LAYER_NAMES.items() if name.startswith("mlp.")}
NEXT_LAYERS = r"model\.layers\.{layers}\..*"  # of heads that predict several tokens


@dataclass(frozen=True, kw_only=True)
class Latent:
    """The differences of a family from a decoder with latent attention, and no experts.

    Attributes:
      stem: the first part of the names of its classes.
      topics: its further keys, in the order in which they are read.
      tied: its default of tie_word_embeddings.
      long, narrow_values: of `read_latent`.
    """

    stem: str
    topics: tuple[Topic, ...]
    tied: bool = False
    long: bool = False
    narrow_values: bool = False

    def family(self, model_type: str) -> Family:
        return Family(
            model_type=model_type,
            architecture=f"{self.stem}ForCausalLM",
            classifier=f"{self.stem}ForSequenceClassification",
            read_config=partial(read, model_type, self),
            write_config=partial(write, self),
            names=tensors,
            unused=NEXT_LAYERS,
        )


def read(model_type: str, latent: Latent, keys: Keys) -> DecoderConfig:
    keys.must_be("hidden_act", "silu", "activation")
    options = read_latent(keys, long=latent.long, narrow_values=latent.narrow_values)
    for topic in latent.topics:
        options |= topic.read(keys, options)
    tied = keys.get("tie_word_embeddings", bool, latent.tied)
    return DecoderConfig(family=model_type, tied_embedding=tied, **options)


def write(latent: Latent, c: DecoderConfig) -> dict[str, Any]:
    keys = write_latent(c)
    for topic in latent.topics:
        keys |= topic.write(c)
    return keys


def tensors(c: DecoderConfig) -> Iterator[Tensor]:
    experts = ExpertNames()
    dense = any(kind.feed_forward == "gated" for kind in c.kinds)
    own = latent_names(c) | (FEED_FORWARD if dense else {}) | experts.in_layer(c)
    yield from names(c, own)
    yield from experts.tensors(c)


def accepts(key: str, *values: Any) -> Topic:
    """Returns the topic of a key that transformers ignores, of which some values are harmless."""

    def read(keys: Keys, _: Options) -> Options:
        if keys.config.get(key) not in (None, *values):
            raise keys.refuse(f"{key} {keys.config.get(key)!r}")
        return {}

    return Topic(read, lambda _: {})


def read_choice(keys: Keys, options: Options) -> Options:
    """Reads the router of DeepSeek-V2, whose groups have an effect with one method only."""
    method = keys.get("topk_method", str, "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise keys.refuse(f"topk_method {method!r}")
    softmax = grouped(group_score="largest", exact=True).read
    if method == "greedy":
        keys = Keys(keys.config | {"n_group": 1, "topk_group": 1}, keys.where)
    return softmax(keys, options)


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


INTERLEAVED = Topic(
    lambda keys, _: {"interleaved_rope": keys.get("rope_interleave", bool, True)},
    lambda c: {"rope_interleave": c.interleaved_rope},
)
V3 = (
    INTERLEAVED,
    counts("n_routed_experts", "num_local_experts", width="moe_intermediate_size"),
    GROUPED,
    shared("n_shared_experts"),
    normalized(True),
    accepts("scoring_func", "sigmoid"),
    accepts("topk_method", "noaux_tc"),
    accepts("moe_layer_freq", 1),
)
TABLE = {
    "deepseek_v3": Latent(stem="DeepseekV3", topics=(*V3, first_dense(3))),
    "glm4_moe_lite": Latent(
        stem="Glm4MoeLite",
        topics=(*V3, layer_kinds(all_but_first), accepts("first_k_dense_replace", 1)),
    ),
    "deepseek_v2": Latent(
        stem="DeepseekV2",
        topics=(
            fixed(interleaved_rope=True),
            counts("n_routed_experts", "num_experts", width="moe_intermediate_size"),
            Topic(read_choice, write_choice),
            shared("n_shared_experts"),
            accepts("norm_topk_prob", False),
            accepts("scoring_func", "softmax"),
            accepts("moe_layer_freq", 1),
            only("mlp_bias", False),
            first_dense(0),
        ),
    ),
    "youtu": Latent(stem="Youtu", topics=(INTERLEAVED,), tied=True),
    "minicpm3": Latent(
        stem="MiniCPM3",
        topics=(Topic(read_factors, write_factors), biases("mlp_bias", "feed_forward_bias")),
        tied=True,
        long=True,
        narrow_values=True,
    ),
}
LATENT = tuple(family.family(model_type) for model_type, family in TABLE.items())
