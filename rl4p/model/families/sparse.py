"""Families with experts, whose layer is else Llama's but for names and options: a table.

* Mixtral (2401.04088), Qwen 2 with experts (2407.10671), OLMoE (2409.02060): a softmax.
* GLM-4.5 (2508.06471), dots.llm1 (2506.05767), Solar Open and EXAONE: the router of DeepSeek-V3
  (2412.19437), a sigmoid with corrections and groups, and shared experts.
* MiniMax-M2 and Hunyuan 3: the same without groups. Ernie 4.5: a corrected softmax. Granite: fused
  experts, and Granite's factors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.dense import read_multipliers, reciprocal, write_multipliers
from rl4p.model.families.expert_keys import (
    FLINT_WINDOW,
    GROUPED,
    INTERVAL,
    LATE_WINDOW,
    NO_WINDOW,
    ONE_WINDOW,
    UNROTATED_WINDOW,
    USED_WINDOW,
    KeyGroup,
    after_first_dense,
    all_but_first,
    biases,
    counts,
    first_dense,
    fixed,
    layer_kinds,
    normalized,
    only,
    scaled_sigmoid,
    shared,
    shared_width,
    steps,
)
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, names
from rl4p.model.families.keys import Keys, write_shape
from rl4p.model.router import Router


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """The differences of a family from Llama.

    Attributes:
      stem: the first part of the names of its classes.
      key_groups: its further keys, in the order in which they are read.
      head_width, theta, tied: its defaults of head_dim, rope_theta and tie_word_embeddings. None is
        the width divided by the number of heads.
      rotated: the part of a head that is rotated by default; None if it is always whole.
      feed_forward: the key of the width of the feed-forward.
      experts: the names of the tensors of experts.
      layer_names: the names of the other tensors in a layer.
      prepare: a function that returns the keys in the form that the readers know.
      unused: `Family.unused`.
    """

    stem: str
    key_groups: tuple[KeyGroup, ...]
    head_width: int | None = None
    theta: float = 10_000.0
    tied: bool = False
    rotated: Callable[[Keys, int], float] | None = None
    feed_forward: str = "intermediate_size"
    experts: ExpertNames = field(default_factory=ExpertNames)
    layer_names: Mapping[tuple[str, ...], str] = field(default_factory=lambda: NORMED)
    prepare: Callable[[Keys], Keys] = lambda keys: keys
    unused: str = ""

    def family(self, model_type: str) -> Family:
        return Family(
            model_type=model_type,
            architecture=f"{self.stem}ForCausalLM",
            classifier=f"{self.stem}ForSequenceClassification",
            read_config=partial(read, model_type, self),
            write_config=partial(write, self),
            names=partial(tensors, self),
            unused=self.unused,
        )


def read(model_type: str, sparse: Sparse, keys: Keys) -> DecoderConfig:
    keys = sparse.prepare(keys)
    keys.must_be("hidden_act", "silu", "activation")
    shape = keys.shape(sparse.head_width, sparse.feed_forward)
    part = {}
    if sparse.rotated is not None:
        width = shape["head_width"]
        part = {"head_width": width, "rotated": sparse.rotated(keys, width)}
    options: dict[str, Any] = {"attention_bias": False, **shape}
    for group in sparse.key_groups:
        options |= group.read(keys, options)
    return DecoderConfig(
        family=model_type,
        **keys.rope(sparse.theta, **part),
        tied_embedding=keys.get("tie_word_embeddings", bool, sparse.tied),
        **options,
    )


def write(sparse: Sparse, c: DecoderConfig) -> dict[str, Any]:
    keys = write_shape(c) | {"hidden_act": "silu", sparse.feed_forward: c.feed_forward_width}
    for group in sparse.key_groups:
        keys |= group.write(c)
    return keys | ({"num_nextn_predict_layers": 0} if sparse.unused else {})


def tensors(sparse: Sparse, c: DecoderConfig) -> Iterator[Tensor]:
    """Yields the tensors of what the layers have."""
    absent = set() if c.query_key_norm else {"query_norm", "key_norm"}
    own = {path: name for path, name in sparse.layer_names.items() if path[0] not in absent}
    yield from names(c, own | sparse.experts.in_layer(c))
    yield from sparse.experts.tensors(c)


def half(*_: Any) -> float:
    return 0.5


def of_rotary_width(keys: Keys, head_width: int) -> float:
    """Returns the part that rotary_dim rotates, where no partial_rotary_factor is given."""
    return keys.size("rotary_dim", head_width) / head_width


NORMED = LAYER_NAMES | {
    ("query_norm", "scale"): "self_attn.q_norm.weight",
    ("key_norm", "scale"): "self_attn.k_norm.weight",
}
MIXTRAL = ExpertNames(
    router="block_sparse_moe.gate.weight",
    correction="block_sparse_moe.e_score_correction_bias",
    experts="block_sparse_moe.experts",
    each={"gate": "w1", "up": "w3", "down": "w2"},
)
ATTENTION_BIAS = biases("attention_bias", "attention_bias")
ALL_BIASES = biases("attention_bias", "attention_bias", "output_bias")
HEAD_NORMS = fixed(query_key_norm="head")
ALL_NORMS = fixed(query_key_norm="whole")
NEXT_LAYERS = r"model\.layers\.{layers}\..*"  # of heads that predict several tokens


def used_norms(keys: Keys, _: Any) -> dict[str, Any]:
    return {"query_key_norm": "head" if keys.get("use_qk_norm", bool, False) else None}


def read_usual_heads(keys: Keys, options: dict[str, Any]) -> dict[str, Any]:
    """Checks that the heads together are as wide as the model, as the norm over them is."""
    keys.must_be("head_dim", options["width"] // options["heads"])
    return {}


DEEPSEEK = (
    counts("n_routed_experts", "num_local_experts", width="moe_intermediate_size"),
    GROUPED,
    shared("n_shared_experts"),
)


TABLE = {
    "mixtral": Sparse(
        stem="Mixtral",
        theta=1e6,
        key_groups=(
            counts("num_local_experts", "num_experts"),
            fixed(normalized_experts=True),
            ONE_WINDOW,
        ),
        experts=MIXTRAL,
    ),
    "qwen2_moe": Sparse(
        stem="Qwen2Moe",
        key_groups=(
            counts("num_experts", None, width="moe_intermediate_size"),
            normalized(False),
            shared_width("shared_expert_intermediate_size", weighted=True),
            steps(),
            USED_WINDOW,
            biases("qkv_bias", "attention_bias", default=True),
        ),
        experts=ExpertNames(shared="mlp.shared_expert"),
    ),
    "olmoe": Sparse(
        stem="Olmoe",
        key_groups=(
            counts("num_experts", "num_local_experts"),
            normalized(False),
            ALL_NORMS,
            ALL_BIASES,
            only("clip_qkv", None),
            KeyGroup(read_usual_heads, lambda _: {}),
            NO_WINDOW,
        ),
    ),
    "glm4_moe": Sparse(
        stem="Glm4Moe",
        rotated=half,
        key_groups=(
            *DEEPSEEK,
            normalized(True),
            first_dense(1),
            KeyGroup(used_norms, lambda c: {"use_qk_norm": c.query_key_norm is not None}),
            ATTENTION_BIAS,
            NO_WINDOW,
        ),
        unused=NEXT_LAYERS,
    ),
    "dots1": Sparse(
        stem="Dots1",
        key_groups=(
            *DEEPSEEK,
            normalized(False),
            first_dense(0),
            HEAD_NORMS,
            ALL_BIASES,
            LATE_WINDOW,
        ),
    ),
    "solar_open": Sparse(
        stem="SolarOpen",
        theta=1e6,
        head_width=128,
        feed_forward="moe_intermediate_size",
        key_groups=(
            counts("n_routed_experts", "num_local_experts"),
            GROUPED,
            shared("n_shared_experts"),
            normalized(True),
            ATTENTION_BIAS,
            NO_WINDOW,
        ),
    ),
    "exaone_moe": Sparse(
        stem="ExaoneMoe",
        key_groups=(
            counts("num_experts", None, width="moe_intermediate_size"),
            GROUPED,
            shared("num_shared_experts"),
            normalized(True),
            layer_kinds(after_first_dense),
            HEAD_NORMS,
            UNROTATED_WINDOW,
        ),
        experts=ExpertNames(correction="mlp.e_score_correction_bias"),
        unused=r"mtp\..*",
    ),
    "ernie4_5_moe": Sparse(
        stem="Ernie4_5_Moe",
        theta=500_000.0,
        tied=True,
        key_groups=(
            counts("moe_num_experts", "num_experts", "moe_k", width="moe_intermediate_size"),
            fixed(
                router=Router(corrected=True, epsilon=1e-12, exact=True),
                normalized_experts=True,
                interleaved_rope=True,
            ),
            shared("moe_num_shared_experts", least=0),
            INTERVAL,
            only("use_bias", False),
            only("moe_norm_min", 1e-12),
            NO_WINDOW,
        ),
        experts=ExpertNames(correction="mlp.moe_statics.e_score_correction_bias", flat=False),
        unused=r"model\.mtp_.*",
    ),
    "hy_v3": Sparse(
        stem="HYV3",
        head_width=128,
        theta=11_158_840.0,
        key_groups=(
            counts("num_experts", "num_local_experts", width="moe_intermediate_size"),
            scaled_sigmoid("router_scaling_factor", 2.826),
            shared("num_shared_experts"),
            layer_kinds(all_but_first),
            HEAD_NORMS,
            ALL_BIASES,
            only("mlp_bias", False),
            NO_WINDOW,
        ),
        experts=ExpertNames(
            router="mlp.router.gate.weight",
            correction="mlp.expert_bias",
            shared="mlp.shared_mlp",
        ),
        unused=NEXT_LAYERS,
    ),
    "flint": Sparse(
        stem="Flint",
        head_width=128,
        key_groups=(
            counts("num_experts", None, width="moe_intermediate_size"),
            fixed(router=Router(score="sigmoid", exact=True)),
            normalized(True),
            shared_width("shared_expert_intermediate_size", weighted=False),
            steps(0, 1),
            fixed(query_key_norm="head", attention_sinks=True),
            ALL_BIASES,
            FLINT_WINDOW,
        ),
        experts=ExpertNames(shared="mlp.shared_expert"),
        layer_names=NORMED | {("sinks",): "self_attn.softmax_offset"},
    ),
    "granitemoe": Sparse(
        stem="GraniteMoe",
        key_groups=(
            counts("num_local_experts", None),
            fixed(normalized_experts=True),
            KeyGroup(
                lambda keys, _: read_multipliers(keys, attention=1.0, logits=reciprocal),
                partial(write_multipliers, logits=reciprocal),
            ),
            ALL_BIASES,
            NO_WINDOW,
        ),
        experts=ExpertNames(
            router="block_sparse_moe.router.layer.weight",
            experts="block_sparse_moe",
            fused=("input_linear.weight", "output_linear.weight"),
        ),
    ),
    "minimax_m2": Sparse(
        stem="MiniMaxM2",
        theta=5e6,
        head_width=128,
        rotated=of_rotary_width,
        key_groups=(
            counts("num_local_experts", "num_experts"),
            fixed(
                router=Router(score="sigmoid", corrected=True),
                normalized_experts=True,
            ),
            ALL_NORMS,
            NO_WINDOW,
        ),
        experts=MIXTRAL,
    ),
}
SPARSE = tuple(family.family(model_type) for model_type, family in TABLE.items())
