"""Tests Llama 4: chunks, layers without rotation, experts; test_families.py has its numbers."""

import re

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES
from rl4p.model.router import Router


def test_its_keys(read, written):
    """As Maverick: every fourth layer is whole, and every second one has experts."""
    config = read("llama4")
    assert config.unrotated == (False, False, False, True)
    assert (config.sliding, config.window, config.chunked) == ((True, True, True, False), 9, True)
    assert (config.normed_rotations, config.interleaved_rope) == (True, True)
    assert (config.query_growth, config.query_growth_step) == (0.3, 5)
    assert config.feed_forwards == ("gated", "experts") * 2
    assert (config.feed_forward_width, config.expert_width, config.shared_width) == (48, 24, 24)
    assert config.router == Router(score="sigmoid", of_inputs=True)
    keys = written(config)
    assert (keys["moe_layers"], keys["no_rope_layers"]) == ([1, 3], [1, 1, 1, 0])
    assert (keys["intermediate_size"], keys["intermediate_size_mlp"]) == (24, 48)


def test_absent_keys_are_those_of_scout(read, written):
    absent = (
        *("attention_chunk_size", "floor_scale", "attn_scale", "interleave_moe_layer_step"),
        *("head_dim", "rope_theta", "rope_scaling", "no_rope_layers"),
    )
    config = read("llama4", without=absent)
    assert (config.window, config.query_growth, config.query_growth_step) == (8192, 0.1, 8192)
    assert (config.feed_forwards, config.head_width, config.rope_theta) == ((), 128, 500_000.0)
    assert config.sliding == read("llama4").sliding
    assert read("llama4", written(config), without=["rope_scaling"]) == config


def test_layers_may_be_rotated_and_whole_or_the_reverse(read, written):
    config = read("llama4_untuned")
    assert (config.sliding, config.unrotated) == ((False, True, True), (False, True, False))
    assert (config.query_growth, config.query_growth_step) == (0.0, 0)
    whole = read("llama4_untuned", {"layer_types": ["full_attention"] * 3})
    assert (whole.window, whole.sliding, whole.chunked) == (None, (), False)
    assert read("llama4_untuned", written(whole)) == whole
    assert read("llama4", {"attn_temperature_tuning": 4}) == read("llama4")
    assert read("llama4", {"moe_layers": [3, 9]}).feed_forwards == (*["gated"] * 3, "experts")


def test_experts_stand_as_they_are_multiplied(read):
    tensors = list(FAMILIES["llama4_text"].names(read("llama4")))
    start = "model.layers.3.feed_forward"
    parts = {x.path[-1]: x for x in tensors if x.name == f"{start}.experts.gate_up_proj"}
    assert [parts[name].part for name in ("gate", "up")] == [(2, 0, 1, 48, 1), (2, 24, 1, 48, 1)]
    assert not any(tensor.transposed for tensor in parts.values())
    paths = {tensor.name: tensor.path for tensor in tensors}
    assert paths[f"{start}.experts.down_proj"] == ("layers", "experts", "down")
    assert paths[f"{start}.router.weight"] == ("layers", "experts", "router")
    shared = ("layers", "shared", "up", "kernel")
    assert paths[f"{start}.shared_expert.up_proj.weight"] == shared
    dense = ("layers", "down", "kernel")
    assert paths["model.layers.2.feed_forward.down_proj.weight"] == dense


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ({"attention_chunk_size": None}, "requires attention_chunk_size null"),
        ({"attn_temperature_tuning": "no"}, "requires attn_temperature_tuning 'no'"),
        ({"layer_types": ["sliding_attention"] * 4}, "requires layer type 'sliding_attention'"),
        ({"layer_types": ["chunked_attention"]}, "1 layer types with num_hidden_layers 4"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers must have a 0 or a 1 for each of the 4"),
        ({"moe_layers": []}, "requires no layer with experts"),
        ({"moe_layers": [True]}, "requires moe_layers [True]"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9, which is more than num_local_exper"),
        ({"partial_rotary_factor": 0.5}, "requires partial_rotary_factor 0.5"),
    ],
)
def test_what_is_refused(read, change, words):
    with pytest.raises(InputError, match=re.escape(words)):
        read("llama4", change)
