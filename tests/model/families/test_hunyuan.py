"""Tests the keys of Hunyuan; test_families.py has its numbers."""

import pytest

from rl4p.base.errors import InputError


def test_a_base_is_stretched_once(read, written):
    config = read("hunyuan_v1_moe")
    assert config.rope_theta == pytest.approx(500.0 * 9 ** (8 / 6))
    assert config.rope_scaling is None
    assert read("hunyuan_v1_moe", written(config), without=["rope_scaling"]) == config


def test_dynamic_scaling_without_a_factor_of_its_own_stays(read):
    scaling = {"rope_scaling": {"type": "dynamic", "factor": 3.0}}
    config = read("hunyuan_v1_dense", scaling)
    assert (config.rope_theta, config.rope_scaling.factor) == (500.0, 3.0)


def test_a_shared_expert_is_as_wide_as_another(read, tensors):
    config = read("hunyuan_v1_moe")
    assert (config.shared_width, config.feed_forward_width, config.expert_width) == (48, 48, None)
    assert {
        "model.layers.0.mlp.shared_mlp.up_proj.weight",
        "model.layers.2.mlp.gate.wg.weight",
    } <= {*tensors(config)}


def test_layers_may_name_the_number_of_chosen_experts_one_by_one(read):
    assert read("hunyuan_v1_moe", {"moe_topk": [2, 2, 2]}) == read("hunyuan_v1_moe")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"moe_topk": [2, 1, 2]}, "moe_topk"),
        ({"moe_topk": 7}, "moe_topk 7, which is more than num_experts 6"),
        ({"num_experts_per_tok": 3}, "num_experts_per_tok 3"),
        ({"rope_scaling": {"type": "dynamic", "alpha": -1.0}}, "alpha -1.0"),
        ({"rope_scaling": {"type": "linear", "alpha": 9.0, "factor": 2.0}}, "alpha 9.0"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_key(read, change, words):
    with pytest.raises(InputError, match=words):
        read("hunyuan_v1_moe", change)
