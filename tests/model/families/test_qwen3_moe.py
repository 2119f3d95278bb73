"""Tests Qwen 3 MoE: the number, the width and the names of experts."""

import pytest


def test_its_keys(read):
    config = read("qwen3_moe")
    assert (config.experts, config.chosen_experts, config.feed_forward_width) == (6, 2, 24)
    assert config.normalized_experts
    assert config.query_key_norm
    assert not read("qwen3_moe_raw").normalized_experts


def test_the_number_of_experts_has_two_names(read):
    assert read("qwen3_moe", {"num_experts": None, "num_local_experts": 5}).experts == 5
    assert read("qwen3_moe", {"num_local_experts": 5}).experts == 6


def test_all_layers_slide_where_a_window_is_asked_for(read, written):
    config = read("qwen3_moe", {"use_sliding_window": True, "sliding_window": 9})
    assert (config.window, config.sliding) == (9, (True, True, True))
    keys = written(config)
    assert (keys["use_sliding_window"], keys["sliding_window"]) == (True, 9)
    plain = read("qwen3_moe", {"sliding_window": 9})
    assert plain.window is None
    assert written(plain)["use_sliding_window"] is False


@pytest.mark.parametrize("case", ["qwen3_moe", "qwen3_moe_raw"])
def test_it_is_written_in_its_own_keys(read, written, case):
    keys = written(read(case))
    expected = {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": case == "qwen3_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    assert {key: keys[key] for key in expected} == expected


def test_each_expert_has_names_and_none_is_a_plain_feed_forward(read, tensors):
    names = tensors(read("qwen3_moe"))
    router = names["model.layers.1.mlp.gate.weight"]
    assert (router.path, router.layer, router.expert) == (("layers", "experts", "router"), 1, None)
    for kernel in ("gate", "up", "down"):
        tensor = names[f"model.layers.1.mlp.experts.4.{kernel}_proj.weight"]
        assert tensor.path == ("layers", "experts", kernel)
        assert (tensor.layer, tensor.expert, tensor.transposed) == (1, 4, True)
        assert f"model.layers.1.mlp.{kernel}_proj.weight" not in names
    assert len(names) == 3 + 3 * (8 + 1 + 3 * 6)
