"""Tests OLMo 3: norms after each block, norms over all heads, scaling of full layers alone."""

import dataclasses

from rl4p.model.rope import YarnScaling
from tests.golden.cases import YARN

SCALING = YarnScaling(
    factor=8.0, original_max_positions=64, fast_turns=4.0, slow_turns=0.5, magnitude=1.1
)


def test_its_keys(read):
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
