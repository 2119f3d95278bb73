"""Tests Mistral, SmolLM3 and OLMo 3: windows, layers without rotation, norms after blocks."""

import dataclasses

import pytest

from rl4p.model.rope import YarnScaling
from tests.golden.cases import YARN


def test_all_layers_slide(read):
    config = read("mistral")
    assert (config.window, config.sliding) == (9, (True, True, True))
    assert not config.attention_bias


def test_null_is_no_window_and_no_key_is_the_first_mistral_s(read):
    whole = read("mistral", {"sliding_window": None})
    assert (whole.window, whole.sliding) == (None, ())
    assert read("mistral", without=["sliding_window"]).window == 4096


def test_an_absent_head_is_not_tied(read):
    assert not read("mistral", without=["tie_word_embeddings"]).tied_embedding


@pytest.mark.parametrize("window", [9, None])
def test_it_is_written_in_its_own_keys_of_mistral(read, written, window):
    keys = written(read("mistral", {"sliding_window": window}))
    assert keys["sliding_window"] == window
    assert "sliding_window" in keys  # the default is the first Mistral's window
    assert keys["hidden_act"] == "silu"


def test_it_has_no_biases_of_mistral(read, tensors):
    assert not [name for name in tensors(read("mistral")) if name.endswith("bias")]


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


def test_it_is_written_in_its_own_keys_of_smollm3(read, written):
    keys = written(read("smollm3_window"))
    expected = {
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": False,
    }
    assert {key: keys[key] for key in expected} == expected


def test_some_layers_of_ministral_may_be_whole(read, written):
    config = read("ministral")
    assert (config.window, config.sliding) == (9, (True, False, True))
    keys = written(config)
    assert keys["layer_types"][1] == "full_attention"
    whole = read("ministral", {"sliding_window": None}, without=["layer_types"])
    assert (whole.window, whole.sliding) == (None, ())
    assert read("ministral", written(whole)) == whole


SCALING = YarnScaling(
    factor=8.0, original_max_positions=64, fast_turns=4.0, slow_turns=0.5, magnitude=1.1
)


def test_its_keys_of_olmo3(read):
    config = read("olmo3")
    assert (config.pre_norms, config.post_norms) == (False, True)
    assert config.query_key_norm == "whole"
    assert config.sliding == (True, False, True)
    assert (config.window, config.rope_theta, config.local_rope_theta) == (9, 5e5, 5e5)
    assert config.rope_scaling == SCALING


def test_every_fourth_layer_is_whole(read):
    sliding = read("olmo3", {"num_hidden_layers": 9}, without=["layer_types"]).sliding
    assert [i for i, slides in enumerate(sliding) if not slides] == [3, 7]


def test_sections_may_have_another_base_if_they_have_the_same(read, written):
    sections = {
        "full_attention": YARN | {"rope_theta": 7.0, "attention_factor": 1.1},
        "sliding_attention": {"rope_theta": 7.0},
    }
    config = read("olmo3", {"rope_parameters": sections, "rope_scaling": None, "rope_theta": None})
    assert (config.rope_theta, config.local_rope_theta) == (7.0, 7.0)
    assert config.rope_scaling == SCALING
    assert read("olmo3", written(config)) == config


def test_it_is_written_for_both_versions_of_transformers(read, written):
    keys = written(dataclasses.replace(read("olmo3"), rope_scaling=None))
    plain = {"rope_theta": 500_000.0, "rope_type": "default"}
    assert keys["rope_parameters"] == {"full_attention": plain, "sliding_attention": plain}
    assert keys["rope_theta"] == 500_000.0
    assert "rope_scaling" not in keys


def test_its_names(read, tensors):
    names = tensors(read("olmo3"))
    assert "model.layers.1.input_layernorm.weight" not in names
    norm = names["model.layers.1.post_attention_layernorm.weight"]
    assert norm.path == ("layers", "attention_post_norm", "scale")
    assert len(names) == 3 + 3 * 11
