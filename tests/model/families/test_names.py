"""Tests the tensor names that most families share."""

import dataclasses

import pytest

from rl4p.model.families.names import LAYER_NAMES, names
from tests.golden.cases import decoder_config


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("input_layernorm", ("attention_norm", "scale")),
        ("post_attention_layernorm", ("feed_forward_norm", "scale")),
        ("self_attn.q_proj", ("query", "kernel")),
        ("self_attn.k_proj", ("key", "kernel")),
        ("self_attn.v_proj", ("value", "kernel")),
        ("self_attn.o_proj", ("output", "kernel")),
        ("mlp.gate_proj", ("gate", "kernel")),
        ("mlp.up_proj", ("up", "kernel")),
        ("mlp.down_proj", ("down", "kernel")),
    ],
)
def test_a_parameter_of_a_layer(name, path):
    """Kernels are transposed in the files, [out, in]; norms are not."""
    by_name = {tensor.name: tensor for tensor in names(decoder_config("llama"), LAYER_NAMES)}
    for layer in range(3):
        tensor = by_name[f"model.layers.{layer}.{name}.weight"]
        assert (tensor.path, tensor.layer, tensor.expert) == (("layers", *path), layer, None)
        assert tensor.transposed is (path[1] == "kernel")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tied_embedding": True}, set()),
        ({"tied_embedding": False}, {"lm_head.weight": ("head",)}),
        ({"tied_embedding": True, "labels": 3}, {"score.weight": ("score",)}),
        ({"tied_embedding": False, "labels": 3}, {"score.weight": ("score",)}),
    ],
)
def test_what_stands_beside_the_layers(change, expected):
    """The embedding is [V, D] here and in the files."""
    config = dataclasses.replace(decoder_config("llama"), **change)
    beside = [tensor for tensor in names(config, LAYER_NAMES) if tensor.layer is None]
    assert {tensor.name: tensor.path for tensor in beside} == {
        "model.embed_tokens.weight": ("embedding",),
        "model.norm.weight": ("norm", "scale"),
        **dict(expected),
    }
    assert not any(tensor.transposed for tensor in beside)
