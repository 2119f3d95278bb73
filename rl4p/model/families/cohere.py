"""Command R and Command R7B or A: attention and feed-forward side by side, after one layer norm.

    y = x + attention(norm(x)) + feed_forward(norm(x))

Neighbours are rotated, and logits have a factor. In the newer ones (2504.00698) most layers slide,
and the others have no rotary embeddings.
"""

from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import LAYER_NAMES, Family, names
from rl4p.model.families.keys import Keys, write_layer_types, write_shape

COHERE_NAMES = {
    path: name for path, name in LAYER_NAMES.items() if path != ("feed_forward_norm", "scale")
}


def read_shared(keys: Keys, theta: float) -> dict[str, Any]:
    """Returns the options of both."""
    keys.must_be("hidden_act", "silu", "activation")
    return {
        **keys.rope(theta),
        **keys.shape(epsilon="layer_norm_eps"),
        **keys.biases(),
        "interleaved_rope": True,
        "mean_norm": True,
        "parallel": True,
        "logits_multiplier": keys.get("logit_scale", float, 0.0625),
        "tied_embedding": keys.get("tie_word_embeddings", bool, True),
    }


def read_cohere(keys: Keys) -> DecoderConfig:
    keys.must_be("use_qk_norm", False)
    keys.must_be("sliding_window", None)
    keys.no_window()
    return DecoderConfig(family="cohere", **read_shared(keys, 500_000.0))


def read_cohere2(keys: Keys) -> DecoderConfig:
    shared = read_shared(keys, 10_000.0)
    keys.must_be("head_dim", shared["width"] // shared["heads"])  # transformers overwrites it
    pattern = keys.size("sliding_window_pattern", 4)
    slides = [(i + 1) % pattern != 0 for i in range(shared["layers"])]
    sliding = keys.sliding(keys.window(4096), slides)
    whole = tuple(not x for x in sliding.get("sliding", (False,) * shared["layers"]))
    return DecoderConfig(
        family="cohere2", **shared, **sliding, unrotated=whole if any(whole) else ()
    )


def write_cohere(c: DecoderConfig) -> dict[str, Any]:
    shape = {key: x for key, x in write_shape(c).items() if key != "rms_norm_eps"}
    return shape | {
        "layer_norm_eps": c.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": c.attention_bias,
        "logit_scale": c.logits_multiplier,
    }


def write_cohere2(c: DecoderConfig) -> dict[str, Any]:
    window = {"sliding_window": c.window or 4096, "layer_types": write_layer_types(c)}
    return write_cohere(c) | window


COHERE, COHERE2 = (
    Family(
        model_type=stem.lower(),
        architecture=f"{stem}ForCausalLM",
        classifier=f"{stem}ForSequenceClassification",
        read_config=reader,
        write_config=writer,
        names=partial(names, layer_names=COHERE_NAMES),
    )
    for stem, reader, writer in (
        ("Cohere", read_cohere, write_cohere),
        ("Cohere2", read_cohere2, write_cohere2),
    )
)
