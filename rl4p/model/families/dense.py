"""Families whose layer is Llama's but for names and options: a table, its reader and its writer.

* Llama 3.x: scaled positions since 3.1 (2407.21783). InternLM3, IQuest-Coder and Seed-OSS differ in
  defaults and in the biases that they may have.
* Ernie 4.5 and Helium: neighbours are rotated. GLM-4: neighbours of half a head; the one of 2025
  (`glm4`) also has norms after each block.
* Granite (2408.13359) and HyperCLOVA X: factors of embeddings, scores, blocks and logits.
* OLMo 2 (2501.00656): norms after each block and none before, norms over all heads.
* Arcee: a feed-forward without a gate, with the square of relu. Apertus (2509.14233): one with
  xIELU, whose numbers are tensors, and norms of queries and keys.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import LAYER_NAMES, Family, Tensor, names, rows
from rl4p.model.families.keys import Keys, write_shape


@dataclass(frozen=True, kw_only=True)
class Dense:
    """The differences of a family from Llama.

    Attributes:
      stem: the first part of the names of its classes.
      head_width, theta, tied: its defaults of head_dim, rope_theta and tie_word_embeddings. None is
        the width divided by the number of heads.
      rotated: the part of a head that is rotated by default; None if it is always whole.
      biases: from a key of config.json to the options of the decoder that it sets.
      biased: those of these keys that are true by default.
      older: from such a key to an older name of it.
      options: the options of the decoder that no key sets.
      layer_names: the names of the tensors in a layer.
      read_more: a function that returns further options, from the keys and the shape.
      write_more: a function that returns the keys of these.
      prepare: a function that returns the keys in the form that the readers know.
    """

    stem: str
    head_width: int | None = None
    theta: float = 10_000.0
    tied: bool = False
    rotated: float | None = None
    biases: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "attention_bias": ("attention_bias", "output_bias"),
            "mlp_bias": ("feed_forward_bias",),
        }
    )
    biased: tuple[str, ...] = ()
    older: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    layer_names: Mapping[tuple[str, ...], str] = field(default_factory=lambda: LAYER_NAMES)
    read_more: Callable[[Keys, Mapping[str, Any]], dict[str, Any]] = lambda keys, shape: {}
    write_more: Callable[[DecoderConfig], dict[str, Any]] = lambda c: {}
    prepare: Callable[[Keys], Keys] = lambda keys: keys

    def family(self, model_type: str) -> Family:
        return Family(
            model_type=model_type,
            architecture=f"{self.stem}ForCausalLM",
            classifier=f"{self.stem}ForSequenceClassification",
            read_config=partial(read, model_type, self),
            write_config=partial(write, self),
            names=partial(dense_names, layer_names=self.layer_names),
        )


def read(model_type: str, dense: Dense, keys: Keys) -> DecoderConfig:
    keys = dense.prepare(keys)
    activation = dense.options.get("activation", "silu")  # its name in transformers is the same
    keys.must_be("hidden_act", activation, "activation")
    keys.must_be("sliding_window", None)
    keys.no_window()
    shape = keys.shape(head_width=None if "head_dim" in keys.config else dense.head_width)
    part = {} if dense.rotated is None else {"head_width": shape["head_width"]}
    options: dict[str, Any] = {}
    for key, named in dense.biases.items():
        older = dense.older.get(key, key)
        has_bias = keys.get(key, bool, keys.get(older, bool, key in dense.biased))
        keys.must_be(older, has_bias)
        options |= dict.fromkeys(named, has_bias)
    return DecoderConfig(
        family=model_type,
        **keys.rope(dense.theta, rotated=dense.rotated or 1.0, **part),
        **shape,
        tied_embedding=keys.get("tie_word_embeddings", bool, dense.tied),
        **{"attention_bias": False, **options, **dense.options, **dense.read_more(keys, shape)},
    )


def write(dense: Dense, c: DecoderConfig) -> dict[str, Any]:
    biases = {key: getattr(c, named[0]) for key, named in dense.biases.items()}
    return write_shape(c) | {"hidden_act": c.activation} | biases | dense.write_more(c)


def dense_names(c: DecoderConfig, layer_names: Mapping[tuple[str, ...], str]) -> Iterator[Tensor]:
    """Yields the tensors of what a layer has; gate and up may be parts of one matrix."""
    gate, up = ("gate", "kernel"), ("up", "kernel")
    absent = {"gate"} if c.ungated else set()
    if not c.post_norms:
        absent |= {"attention_post_norm", "feed_forward_post_norm"}
    own = {path: name for path, name in layer_names.items() if path[0] not in absent}
    fused = own.get(gate) == own[up]
    parts = rows(dict.fromkeys((gate, up), c.feed_forward_width)) if fused else {}
    for tensor in names(c, own, parts):
        number = tensor.path[-1] in ("slope", "edge")  # without an axis in the files
        yield tensor._replace(expert=0) if number else tensor


def read_multipliers(
    keys: Keys, *, attention: float, logits: Callable[[float], float]
) -> dict[str, Any]:
    """Returns the options of Granite's factors.

    Args:
      attention: the default of the factor of scores.
      logits: a function from logits_scaling to the factor of the logits.
    """
    factors = {
        key: keys.get(key, float, attention if key == "attention_multiplier" else 1.0)
        for key in (
            *("embedding_multiplier", "residual_multiplier"),
            *("attention_multiplier", "logits_scaling"),
        )
    }
    for key, factor in factors.items():
        if not 0 < factor < math.inf:
            raise keys.refuse(f"{key} {factor}")
    return {
        "embedding_multiplier": factors["embedding_multiplier"],
        "residual_multiplier": factors["residual_multiplier"],
        "query_scalar": factors["attention_multiplier"] ** -2,
        "logits_multiplier": logits(factors["logits_scaling"]),
    }


def write_multipliers(c: DecoderConfig, *, logits: Callable[[float], float]) -> dict[str, Any]:
    """Returns the keys of Granite's factors; `logits` is as in `read_multipliers`."""
    return {
        "embedding_multiplier": c.embedding_multiplier,
        "residual_multiplier": c.residual_multiplier,
        "attention_multiplier": float(c.query_scalar or c.head_width) ** -0.5,
        "logits_scaling": inverse(logits, c.logits_multiplier),
    }


def reciprocal(x: float) -> float:
    return 1 / x


def inverse(function: Callable[[float], float], y: float) -> float:
    """Returns the number x of which the function, its own inverse, is exactly y."""
    x = function(y)
    near = (x, math.nextafter(x, 0), math.nextafter(x, math.inf))
    return next((x for x in near if function(x) == y), x)


def read_clova(keys: Keys, shape: Mapping[str, Any]) -> dict[str, Any]:
    scale = shape["head_width"] ** -0.5
    return read_multipliers(keys, attention=scale, logits=float) | {
        "post_norms": keys.get("use_post_norm", bool, True)
    }


def with_apertus_rope(keys: Keys) -> Keys:
    """Returns the keys with the rope section that transformers takes for one that is absent."""
    if any(keys.get(name, dict, {}) for name in ("rope_scaling", "rope_parameters")):
        return keys
    if (theta := keys.get("rope_theta", float, APERTUS_THETA)) != APERTUS_THETA:
        raise keys.refuse(f"rope_theta {theta} without rope_scaling")  # 5 ignores it
    config = copy(keys.config)  # a copy notes in the same place which keys were read
    config["rope_parameters"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return Keys(config, keys.where)


QUERY_KEY_VALUE = {"attention_bias": ("attention_bias",)}
OLMO2_NAMES = {path: name for path, name in LAYER_NAMES.items() if path[1] != "scale"} | {
    ("attention_post_norm", "scale"): "post_attention_layernorm.weight",
    ("feed_forward_post_norm", "scale"): "post_feedforward_layernorm.weight",
    ("query_norm", "scale"): "self_attn.q_norm.weight",
    ("key_norm", "scale"): "self_attn.k_norm.weight",
}
OLMO2_NORMS = {"pre_norms": False, "post_norms": True, "query_key_norm": "whole"}
GLM_NAMES = LAYER_NAMES | {(name, "kernel"): "mlp.gate_up_proj.weight" for name in ("gate", "up")}
GLM4_NAMES = GLM_NAMES | {
    ("attention_post_norm", "scale"): "post_self_attn_layernorm.weight",
    ("feed_forward_post_norm", "scale"): "post_mlp_layernorm.weight",
}
CLOVA_NAMES = LAYER_NAMES | {
    ("attention_post_norm", "scale"): "post_norm1.weight",
    ("feed_forward_post_norm", "scale"): "post_norm2.weight",
}
APERTUS_THETA = 12_000_000.0
APERTUS_NAMES = LAYER_NAMES | {
    ("attention_norm", "scale"): "attention_layernorm.weight",
    ("feed_forward_norm", "scale"): "feedforward_layernorm.weight",
    ("query_norm", "scale"): "self_attn.q_norm.weight",
    ("key_norm", "scale"): "self_attn.k_norm.weight",
    ("xielu", "positive"): "mlp.act_fn.alpha_p",
    ("xielu", "negative"): "mlp.act_fn.alpha_n",
    ("xielu", "slope"): "mlp.act_fn.beta",
    ("xielu", "edge"): "mlp.act_fn.eps",
}
GLM = Dense(
    stem="Glm",
    head_width=128,
    rotated=0.5,
    biases=QUERY_KEY_VALUE,
    biased=("attention_bias",),
    options={"interleaved_rope": True},
    layer_names=GLM_NAMES,
)
TABLE = {
    "llama": Dense(stem="Llama"),
    "internlm3": Dense(
        stem="Llama",  # the class of transformers
        head_width=128,
        older={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    ),
    "iquestcoder": Dense(stem="Llama", head_width=128),
    "seed_oss": Dense(
        stem="SeedOss",
        head_width=128,
        biases=QUERY_KEY_VALUE
        | {"attention_out_bias": ("output_bias",), "mlp_bias": ("feed_forward_bias",)},
        biased=("attention_bias",),
    ),
    "ernie4_5": Dense(
        stem="Ernie4_5",
        head_width=128,
        theta=500_000.0,
        tied=True,
        biases={"use_bias": ("attention_bias", "output_bias", "feed_forward_bias")},
        options={"interleaved_rope": True},
    ),
    "helium": Dense(
        stem="Helium",
        head_width=128,
        theta=100_000.0,
        biases=QUERY_KEY_VALUE | {"mlp_bias": ("feed_forward_bias",)},
        options={"interleaved_rope": True},
    ),
    "glm": GLM,
    "glm4": replace(
        GLM,
        stem="Glm4",
        options={"interleaved_rope": True, "post_norms": True},
        layer_names=GLM4_NAMES,
    ),
    "granite": Dense(
        stem="Granite",
        read_more=lambda keys, _: read_multipliers(keys, attention=1.0, logits=reciprocal),
        write_more=partial(write_multipliers, logits=reciprocal),
    ),
    "hyperclovax": Dense(
        stem="HyperCLOVAX",
        layer_names=CLOVA_NAMES,
        read_more=read_clova,
        write_more=lambda c: write_multipliers(c, logits=float) | {"use_post_norm": c.post_norms},
    ),
    "olmo2": Dense(
        stem="Olmo2",
        biases={"attention_bias": ("attention_bias", "output_bias")},
        options=OLMO2_NORMS,
        layer_names=OLMO2_NAMES,
    ),
    "arcee": Dense(stem="Arcee", options={"activation": "relu2", "ungated": True}),
    "apertus": Dense(
        stem="Apertus",
        theta=APERTUS_THETA,
        biases={"attention_bias": ("attention_bias", "output_bias")},
        options={"activation": "xielu", "ungated": True, "query_key_norm": "head"},
        layer_names=APERTUS_NAMES,
        prepare=with_apertus_rope,
        write_more=lambda c: {} if c.rope_scaling else {"rope_scaling": {"rope_type": "default"}},
    ),
}
DENSE = tuple(dense.family(model_type) for model_type, dense in TABLE.items())
