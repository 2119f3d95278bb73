"""Tests Gemma 2: its keys, its caps, its norms."""

import pytest


def test_its_keys(read):
    config = read("gemma2")
    assert config.centered_norm
    assert config.post_norms
    assert config.scaled_embedding
    assert not config.query_key_norm
    assert not config.attention_bias
    assert config.activation == "gelu_tanh"
    assert (config.window, config.sliding) == (9, (True, False, True))
    assert (config.attention_softcap, config.logits_softcap) == (2.0, 3.0)
    assert (config.query_scalar, config.head_width) == (10.0, 16)


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("attn_logit_softcapping", "attention_softcap"),
        ("final_logit_softcapping", "logits_softcap"),
    ],
)
def test_null_is_no_cap(read, written, key, option):
    config = read("gemma2", {key: None})
    assert getattr(config, option) is None
    assert written(config)[key] is None


def test_layers_may_be_named(read):
    types = ["full_attention", "sliding_attention", "full_attention"]
    assert read("gemma2", {"layer_types": types}).sliding == (False, True, False)


def test_it_is_written_in_its_own_keys(read, written):
    keys = written(read("gemma2"))
    expected = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 10,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
        "attention_bias": False,
    }
    assert {key: keys[key] for key in expected} == expected


@pytest.mark.parametrize(("scalar", "kind"), [(144, int), (144.0, int), (10.5, float)])
def test_a_scalar_is_written_as_it_was(read, written, scalar, kind):
    value = written(read("gemma2", {"query_pre_attn_scalar": scalar}))["query_pre_attn_scalar"]
    assert value == scalar
    assert type(value) is kind


def test_its_four_norms_have_names_of_their_own(read, tensors):
    names = tensors(read("gemma2"))
    layer = "model.layers.2"
    for name, path in {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_post_norm",
        "pre_feedforward_layernorm": "feed_forward_norm",
        "post_feedforward_layernorm": "feed_forward_post_norm",
    }.items():
        assert names[f"{layer}.{name}.weight"].path == ("layers", path, "scale")
    assert len(names) == 2 + 3 * 11
