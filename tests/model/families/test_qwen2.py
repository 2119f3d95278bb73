"""Tests Qwen 2: biases on query, key and value; layers after a given one may slide."""

from pathlib import Path

import numpy as np

from rl4p.model.decoder import Decoder
from tests.golden import forward
from tests.golden.cases import (
    decoder_config,
    make_tensors,
    to_params,
)

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


def test_gradients_are_those_of_transformers():
    config = decoder_config("qwen2")
    params = to_params(config, make_tensors(config))
    with np.load(GOLDEN / "qwen2.npz") as file:
        golden = dict(file)
    forward.assert_gradient(Decoder(config=config), params, golden)
