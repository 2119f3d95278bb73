"""What most families share: keys of config.json, and names of tensors.

A family's file takes these functions and tables and adds what is its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rl4p.errors import InputError
from rl4p.model.decoder import DecoderConfig
from rl4p.model.families.family import Tensor

# Where a parameter of one layer stands in the files; names come after "model.layers.<i>.".
LAYER_NAMES = {
    ("attention_norm", "scale"): "input_layernorm.weight",
    ("feed_forward_norm", "scale"): "post_attention_layernorm.weight",
    ("query", "kernel"): "self_attn.q_proj.weight",
    ("key", "kernel"): "self_attn.k_proj.weight",
    ("value", "kernel"): "self_attn.v_proj.weight",
    ("output", "kernel"): "self_attn.o_proj.weight",
    ("gate", "kernel"): "mlp.gate_proj.weight",
    ("up", "kernel"): "mlp.up_proj.weight",
    ("down", "kernel"): "mlp.down_proj.weight",
}


class Keys:
    """Reads keys of a config.json; what is absent or of another type raises InputError."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of the kind (an integer will do for a float); null is as if it were absent."""
        value = self.config.get(key)
        value = default if value is None else value
        if value is None:
            raise InputError(f"{self.where} has no {key!r}.")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise InputError(f"{self.where}: {key} should be {kind.__name__}, is {value!r}.")
        return value

    def refuse(self, what: str) -> InputError:
        return InputError(f"{self.where} asks for {what}, which is not supported.")

    def must_be(self, key: str, only: Any, what: str | None = None) -> None:
        """Refuses every value of an option but the one that the decoder follows."""
        value = self.config.get(key)
        if value is not None and value != only:
            raise self.refuse(f"{what or key} {value!r}")

    def rope(self) -> dict[str, Any]:
        """The decoder's rope options.

        transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
        """
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise self.refuse(f"rope type {rope_type!r}")
        theta = rope.get("rope_theta") or self.config.get("rope_theta") or 10_000.0
        return {"rope_theta": float(theta)}

    def shape(self) -> dict[str, Any]:
        """The options of the decoder that every family has, but rope's."""
        heads, width = self.get("num_attention_heads", int), self.get("hidden_size", int)
        return {
            "vocabulary": self.get("vocab_size", int),
            "width": width,
            "layers": self.get("num_hidden_layers", int),
            "heads": heads,
            "key_value_heads": self.get("num_key_value_heads", int, heads),
            "head_width": self.get("head_dim", int, width // heads),
            "feed_forward_width": self.get("intermediate_size", int),
            "max_positions": self.get("max_position_embeddings", int),
            "norm_epsilon": self.get("rms_norm_eps", float),
        }


def write_shape(c: DecoderConfig) -> dict[str, Any]:
    """The keys that every family has."""
    return {
        "vocab_size": c.vocabulary,
        "hidden_size": c.width,
        "intermediate_size": c.feed_forward_width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_value_heads,
        "head_dim": c.head_width,
        "max_position_embeddings": c.max_positions,
        "rope_theta": c.rope_theta,
        "rms_norm_eps": c.norm_epsilon,
        "tie_word_embeddings": c.tied_embedding,
    }


def names(c: DecoderConfig, layer_names: Mapping[tuple[str, ...], str]) -> Iterator[Tensor]:
    """Every tensor of a checkpoint, by the table of one layer's."""
    yield Tensor(("embedding",), None, None, "model.embed_tokens.weight", False)
    yield Tensor(("norm", "scale"), None, None, "model.norm.weight", False)
    if not c.tied_embedding:
        yield Tensor(("head",), None, None, "lm_head.weight", False)
    for path, name in layer_names.items():
        for layer in range(c.layers):
            whole = f"model.layers.{layer}.{name}"
            yield Tensor(("layers", *path), layer, None, whole, path[-1] == "kernel")
