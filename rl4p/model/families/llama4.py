"""The text model of Llama 4: Scout and Maverick.

* Most layers see the chunk of their token alone and are rotated, by neighbours; queries and keys
  are then normed without a weight. The others see all tokens, have no rotary embeddings, and their
  queries grow with the position (2501.19399).
* The router is a sigmoid, whose score multiplies the input of an expert. A shared expert stands
  beside them. In Maverick every second layer is dense.
"""

from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.expert_keys import KeyGroup, counts, fixed, sparse, with_experts
from rl4p.model.families.expert_names import ExpertNames
from rl4p.model.families.family import LAYER_NAMES
from rl4p.model.families.keys import Keys
from rl4p.model.families.llama import read_unrotated
from rl4p.model.families.sparse import ALL_BIASES, Sparse
from rl4p.model.router import Router

CHUNK = "attention_chunk_size"
CHUNKED = {"chunked_attention": True, "full_attention": False}


def read_attention(keys: Keys, options: dict[str, Any]) -> dict[str, Any]:
    """Returns which layers are rotated, which see a chunk, and how their queries are scaled."""
    unrotated = read_unrotated(keys, options["layers"])
    usual = ["full_attention" if whole else "chunked_attention" for whole in unrotated]
    chunked = keys.by_type(keys.get("layer_types", list, usual), CHUNKED, options["layers"])
    if keys.config.get(CHUNK, 8192) is None:
        raise keys.refuse(f"{CHUNK} null")  # with which transformers runs no layer
    tuned = keys.config.get("attn_temperature_tuning")
    if tuned not in (None, True, False, 4):  # 4 in the first files
        raise keys.refuse(f"attn_temperature_tuning {tuned!r}")
    window = {"window": keys.size(CHUNK, 8192), "sliding": chunked, "chunked": True}
    growth = {
        "query_growth": keys.get("attn_scale", float, 0.1),
        "query_growth_step": keys.size("floor_scale", 8192),
    }
    return {
        "unrotated": unrotated if any(unrotated) else (),
        "normed_rotations": keys.get("use_qk_norm", bool, True),
        **(window if any(chunked) else {}),
        **(growth if tuned is not False and growth["query_growth"] else {}),
    }


def write_attention(c: DecoderConfig) -> dict[str, Any]:
    names = {chunked: name for name, chunked in CHUNKED.items()}
    return {
        "no_rope_layers": [int(not kind.unrotated) for kind in c.kinds],
        "layer_types": [names[kind.slides] for kind in c.kinds],
        CHUNK: c.window or 8192,
        "use_qk_norm": c.normed_rotations,
        "attn_temperature_tuning": bool(c.query_growth),
        "attn_scale": c.query_growth,
        "floor_scale": c.query_growth_step or 8192,
    }


def read_layers(keys: Keys, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the layers with experts: those in moe_layers, or else every n-th."""
    layers, step = options["layers"], keys.size("interleave_moe_layer_step", 1)
    chosen = keys.get("moe_layers", list, [*range(step - 1, layers, step)])
    if any(type(layer) is not int for layer in chosen):
        raise keys.refuse(f"moe_layers {chosen!r}")
    return with_experts(keys, [layer in chosen for layer in range(layers)])


LLAMA4 = Sparse(
    stem="Llama4",
    head_width=128,
    theta=500_000.0,
    feed_forward="intermediate_size_mlp",
    key_groups=(
        counts("num_local_experts", None, width="intermediate_size"),
        # A shared expert is as wide as another one.
        KeyGroup(lambda _, options: {"shared_width": options["expert_width"]}, lambda _: {}),
        fixed(router=Router(score="sigmoid", of_inputs=True), interleaved_rope=True),
        KeyGroup(
            read_layers, lambda c: {"moe_layers": [i for i, has in enumerate(sparse(c)) if has]}
        ),
        KeyGroup(read_attention, write_attention),
        ALL_BIASES,
    ),
    experts=ExpertNames(
        router="feed_forward.router.weight",
        experts="feed_forward.experts",
        fused=("gate_up_proj", "down_proj"),
        transposed=False,
        shared="feed_forward.shared_expert",
    ),
    layer_names={path: name.replace("mlp.", "feed_forward.") for path, name in LAYER_NAMES.items()},
).family("llama4_text")
