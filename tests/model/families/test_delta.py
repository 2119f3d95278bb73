"""Tests Qwen3-Next and Qwen 3.5: their layers, and where their matrices stand in the files."""

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES

CASES = ["qwen3_next", "qwen3_5", "qwen3_5_moe"]


@pytest.mark.parametrize("case", CASES)
def test_its_keys(read, case):
    config = read(case)
    assert config.mixers == ("delta", "attention", "delta", "attention", "delta")
    assert (config.centered_norm, config.attention_gate, config.query_key_norm) == (
        *(True, True),
        "head",
    )
    assert config.rotary_width == 4  # a quarter of a head
    assert config.output_bias == config.attention_bias == (case == "qwen3_next")
    assert (config.delta.key_heads, config.delta.value_heads, config.delta.kernel) == (2, 4, 4)
    assert (config.shared_width, config.weighted_shared) == (
        (0, False) if case == "qwen3_5" else (20, True)
    )


def test_every_second_layer_has_experts_but_for_the_ones_named(read):
    usual = ("gated", "experts", "gated", "experts", "gated")
    assert read("qwen3_next").feed_forwards == usual
    assert read("qwen3_next", {"mlp_only_layers": [1]}).feed_forwards == (
        *usual[:1],
        "gated",
        *usual[2:],
    )
    assert read("qwen3_5_moe").feed_forwards == ()
    assert read("qwen3_5_moe").normalized_experts


def test_the_fourth_layer_has_attention_by_default(read):
    mixers = read("qwen3_5", without=["full_attention_interval"]).mixers
    assert mixers == ("delta", "delta", "delta", "attention", "delta")
    types = ["full_attention"] + ["linear_attention"] * 4
    assert read("qwen3_5", {"layer_types": types}).mixers[:2] == ("attention", "delta")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer_types": ["sliding_attention"] * 5}, "layer type 'sliding_attention'"),
        ({"layer_types": [["x"]] * 5}, r"layer type \['x'\]"),
        ({"layer_types": ["full_attention"]}, "layer_types with 1 entries for 5 layers"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 with linear_num_key_heads 2"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim 1"),
        ({"attn_output_gate": False}, "attn_output_gate False"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
    ],
)
def test_what_it_lacks_is_refused(read, change, sentence):
    with pytest.raises(InputError, match=f"requires {sentence}, which is not supported"):
        read("qwen3_5", change)


def test_rotation_by_sections_is_that_of_text(read):
    plain = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    sections = plain | {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    ours, expected = (read("qwen3_5", {"rope_parameters": x}) for x in (sections, plain))
    assert ours == expected


@pytest.mark.slow
def test_a_gate_stands_beside_each_head_of_queries(read):
    """Four heads of 16: the even runs of 16 rows are queries."""
    config = read("qwen3_5")
    parts = [
        tensor.part.index_of((slice(0, 64), slice(0, 32)))[0]
        for tensor in FAMILIES[config.family].names(config)
        if tensor.name == "model.layers.1.self_attn.q_proj.weight"
    ]
    rows = np.arange(128).reshape(4, 2, 16)
    for part, expected in zip(parts, (rows[:, 0], rows[:, 1]), strict=True):
        np.testing.assert_array_equal(part, expected.reshape(-1))


@pytest.mark.slow
def test_each_head_of_qwen3_next_has_its_projections_together(read):
    """Two heads: 8 rows of queries, 8 of keys, and two heads of values and gates of 12 each."""
    config = read("qwen3_next")
    parts = {
        tensor.path[2]: tensor.part.index_of((slice(0, size), slice(0, 32)))[0]
        for tensor in FAMILIES[config.family].names(config)
        if tensor.name == "model.layers.0.linear_attn.in_proj_qkvz.weight"
        for size in ({"query": 16, "key": 16}.get(tensor.path[2], 48),)
    }
    rows = np.split(np.arange(128).reshape(2, 64), [8, 16, 40], axis=1)
    assert [*parts] == ["query", "key", "value", "gate"]
    for part, expected in zip(parts.values(), rows, strict=True):
        np.testing.assert_array_equal(part, expected.reshape(-1))
