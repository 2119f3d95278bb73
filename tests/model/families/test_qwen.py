"""Tests Qwen 2: biases on query, key and value; layers after a given one may slide."""

from pathlib import Path

import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from tests.golden import forward
from tests.golden.cases import decoder_config, make_tensors, to_params

GOLDEN = Path(forward.__file__).parent


def test_its_keys(read):
    config = read("qwen2")
    assert config.attention_bias
    assert config.tied_embedding
    assert not config.query_key_norm
    assert (config.window, config.sliding) == (None, ())


def test_the_layers_after_so_many_slide(read):
    window = read("qwen2_window")
    assert (window.window, window.sliding) == (9, (False, True, True))
    later = read("qwen2_window", {"num_hidden_layers": 30}, without=["max_window_layers"])
    assert later.sliding == (False,) * 28 + (True,) * 2
    assert read("qwen2_window", {"max_window_layers": 3}).window is None


def test_a_window_is_off_unless_it_is_asked_for(read):
    for config in (
        read("qwen2_window", {"use_sliding_window": False}),
        read("qwen2_window", without=["use_sliding_window"]),
    ):
        assert (config.window, config.sliding) == (None, ())


def test_layers_may_be_named(read):
    types = ["sliding_attention", "full_attention", "full_attention"]
    assert read("qwen2_window", {"layer_types": types}).sliding == (True, False, False)


def test_it_is_written_in_its_own_keys(read, written):
    plain, window = written(read("qwen2")), written(read("qwen2_window"))
    assert plain["use_sliding_window"] is False
    expected = {
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "hidden_act": "silu",
    }
    assert {key: window[key] for key in expected} == expected


def test_its_biases_have_names(read, tensors):
    names = tensors(read("qwen2"))
    for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        tensor = names[f"model.layers.1.self_attn.{theirs}.bias"]
        assert (tensor.path, tensor.layer, tensor.transposed) == (
            ("layers", ours, "bias"),
            1,
            False,
        )
    assert len(names) == 2 + 3 * 12


@pytest.mark.slow
def test_gradients_are_those_of_transformers():
    config = decoder_config("qwen2")
    params = to_params(config, make_tensors(config))
    with np.load(GOLDEN / "qwen2.npz") as file:
        golden = dict(file)
    forward.assert_gradient(Decoder(config=config), params, golden)


def test_its_keys_of_qwen3(read):
    config = read("qwen3")
    assert config.query_key_norm
    assert not config.attention_bias
    assert not config.centered_norm
    assert config.head_width == 16


def test_it_slides_as_qwen_2_does(read, written):
    window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
    config = read("qwen3", window)
    assert (config.window, config.sliding) == (9, (False, False, True))
    keys = written(config)
    assert {key: keys[key] for key in window} == window
    assert keys["attention_bias"] is False
    assert written(read("qwen3"))["use_sliding_window"] is False


def test_its_norms_of_heads_have_names(read, tensors):
    names = tensors(read("qwen3"))
    for ours, theirs in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
        tensor = names[f"model.layers.2.self_attn.{theirs}.weight"]
        assert (tensor.path, tensor.layer) == (("layers", ours, "scale"), 2)
    assert not [name for name in names if name.endswith("bias")]
    assert len(names) == 3 + 3 * 11


def test_its_keys_of_qwen3_moe(read):
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
def test_it_is_written_in_its_own_keys_of_qwen3_moe(read, written, case):
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
