"""Tests SmolLM3: layers without rotary embeddings, which slide if any slides."""

import pytest


@pytest.mark.parametrize(
    ("change", "unrotated", "sliding"),
    [
        ({}, (False, True, False), ()),
        ({"no_rope_layers": [0, 0, 0, 1]}, (True, True, True), ()),
        ({"no_rope_layers": [1, 1, 1]}, (), ()),
        ({"no_rope_layers": None, "no_rope_layer_interval": 3}, (False, False, True), ()),
        ({"sliding_window": 9}, (False, True, False), ()),
        ({"use_sliding_window": True}, (False, True, False), ()),
        ({"use_sliding_window": True, "sliding_window": 9}, *[(False, True, False)] * 2),
    ],
)
def test_its_layers(read, written, change, unrotated, sliding):
    config = read("smollm3", change)
    assert (config.unrotated, config.sliding) == (unrotated, sliding)
    assert read("smollm3", written(config) | {"pad_token_id": None}) == config


def test_it_is_written_in_its_own_keys(read, written):
    keys = written(read("smollm3_window"))
    expected = {
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    }
    assert {key: keys[key] for key in expected} == expected
