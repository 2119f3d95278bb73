"""Tests Phi-3 and Phi-4: two fused matrices, a rotated part of each head, LongRoPE."""

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES, TensorPart
from tests.golden.cases import CASES

ROPE = CASES["phi3"]["rope_scaling"]


def test_its_keys(read):
    config = read("phi3")
    assert (config.head_width, config.rotary_width, config.max_positions) == (16, 12, 128)
    assert config.rope_scaling.max_positions == 512
    assert not config.sliding
    plain = read("phi3_window")
    assert (plain.rotary_width, plain.window, plain.sliding) == (8, 9, (True,) * 3)
    assert plain.max_positions == 512


def test_it_is_written_in_its_own_keys(read, written):
    keys = written(read("phi3"))
    expected = {
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 128,
        "sliding_window": None,
    }
    assert {key: keys[key] for key in expected} == expected
    assert keys["rope_scaling"] == ROPE  # transformers 4 takes these three keys and no other
    other = read("phi3", {"rope_scaling": ROPE | {"attention_factor": 1.5}})
    assert written(other)["rope_scaling"] == ROPE | {"attention_factor": 1.5}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"partial_rotary_factor": 0.45}, "factor 0.45, which rotates 7 of 16 elements"),
        ({"partial_rotary_factor": 0.3}, "short_factor and long_factor must have 2 numbers"),
        ({"partial_rotary_factor": 1.5}, "rotates 24 of 16"),
        ({"partial_rotary_factor": 0.7}, "rotates 11 of 16"),
        ({"rope_scaling": ROPE | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor and the"),
        ({"rope_scaling": ROPE | {"long_factor": [1.0]}}, "must have 6 numbers"),
        ({"original_max_position_embeddings": None}, "has no 'original_max_position_embeddings'"),
        ({"layer_types": ["sliding_attention"] * 3}, "requires layer_types"),
        ({"hidden_act": "gelu"}, "requires activation 'gelu'"),
    ],
)
def test_what_it_refuses(read, change, sentence):
    with pytest.raises(InputError, match=sentence):
        read("phi3", change)


def test_queries_keys_and_values_are_rows_of_one_matrix(read):
    config = read("phi3")  # four heads and two key heads of 16
    names = [*FAMILIES["phi3"].names(config)]
    fused = [x for x in names if x.name == "model.layers.2.self_attn.qkv_proj.weight"]
    assert [(x.path[1], x.part) for x in fused] == [
        ("query", TensorPart(0, 0, 1, 128)),
        ("key", TensorPart(0, 64, 1, 128)),
        ("value", TensorPart(0, 96, 1, 128)),
    ]
    assert all(x.transposed for x in fused)
    assert len({x.name for x in names}) == 2 + 3 * 6
