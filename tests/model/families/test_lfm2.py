"""Tests LFM2; test_family.py has its defaults."""

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES


def test_its_layers(read, written):
    config = read("lfm2")
    assert config.mixers == ("convolution", "attention", "convolution")
    assert config.convolution.kernel == 4
    assert config.query_key_norm == "head"
    assert written(config)["layer_types"] == ["conv", "full_attention", "conv"]
    assert read("lfm2_biases").mixers == config.mixers


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        ({}, 48),  # 48 x 2 / 3 x 1.3 is 41
        ({"block_multiple_of": 5}, 45),
        ({"block_ffn_dim_multiplier": None}, 32),
        ({"block_auto_adjust_ff_dim": False}, 48),
        ({"block_ff_dim": 60}, 56),
    ],
)
def test_the_width_of_its_feed_forward(read, written, keys, width):
    config = read("lfm2", keys)
    assert config.feed_forward_width == width
    assert read("lfm2", written(config) | {"model_type": "lfm2"}) == config


def test_the_older_names_of_keys_win(read):
    assert read("lfm2", {"tie_embedding": True, "tie_word_embeddings": False}).tied_embedding
    keys = {"full_attn_idxs": [0], "layer_types": ["conv"] * 3}
    assert read("lfm2", keys).mixers == ("convolution",) * 3


def test_three_projections_stand_in_one_matrix(read):
    by_name = tensors_of(read("lfm2_biases"))
    parts = by_name["model.layers.0.conv.in_proj.weight"]
    assert [path[2] for path, _ in parts] == ["input_gate", "output_gate", "value"]
    assert [part.start for _, part in parts] == [0, 32, 64]
    assert {"model.layers.2.conv.conv.bias", "model.embedding_norm.weight"} <= by_name.keys()


def tensors_of(config):
    by_name = {}
    for tensor in FAMILIES[config.family].names(config):
        by_name.setdefault(tensor.name, []).append((tensor.path, tensor.part))
    return by_name


def test_experts_follow_dense_layers(read, written):
    config = read("lfm2_moe")
    assert config.feed_forwards == ("gated", "experts", "experts")
    assert (config.router.score, config.router.corrected) == ("sigmoid", True)
    assert written(config)["num_dense_layers"] == 1


@pytest.mark.parametrize(
    ("case", "keys", "words"),
    [
        ("lfm2", {"layer_types": ["conv", "mamba", "conv"]}, "layer type 'mamba'"),
        ("lfm2", {"layer_types": ["conv"]}, "1 layer types with num_hidden_layers 3"),
        ("lfm2_moe", {"num_dense_layers": 3}, "num_dense_layers 3 of 3 layers"),
        ("lfm2_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok 7"),
    ],
)
def test_what_is_refused(read, case, keys, words):
    with pytest.raises(InputError, match=words):
        read(case, keys)
