"""Tests Gemma 2: its keys, its caps, its norms."""

import pytest

from rl4p.base.errors import InputError
from rl4p.model.rope import LinearScaling


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


def test_its_keys_of_gemma3(read):
    config = read("gemma3")
    assert config.query_key_norm
    assert config.post_norms
    assert config.centered_norm
    assert config.scaled_embedding
    assert config.sliding == (True, True, False)  # in this case every third layer is full
    assert (config.rope_theta, config.local_rope_theta) == (500.0, 50.0)
    assert config.rope_scaling == LinearScaling(factor=8.0)
    assert config.attention_softcap is None
    assert config.logits_softcap is None


def test_every_sixth_layer_is_whole(read):
    sliding = read("gemma3", {"num_hidden_layers": 13}, without=["sliding_window_pattern"]).sliding
    assert [i for i, slides in enumerate(sliding) if not slides] == [5, 11]


def test_a_cap_of_logits_is_read_and_one_of_attention_refused(read):
    config = read("gemma3", {"attn_logit_softcapping": None, "final_logit_softcapping": 7.0})
    assert (config.attention_softcap, config.logits_softcap) == (None, 7.0)
    with pytest.raises(InputError, match=r"requires attn_logit_softcapping 5, which is not supp"):
        read("gemma3", {"attn_logit_softcapping": 5})


WHOLE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0}
LOCAL = {"rope_type": "default", "rope_theta": 2.0}
SECTIONS = {"full_attention": WHOLE, "sliding_attention": LOCAL}
OLD = {"rope_theta", "rope_local_base_freq", "rope_scaling"}


def test_each_kind_of_layer_has_a_section_of_rope_parameters(read):
    config = read("gemma3", {"rope_parameters": SECTIONS}, without=OLD)
    assert (config.rope_theta, config.local_rope_theta) == (3.0, 2.0)
    assert config.rope_scaling == LinearScaling(factor=2.0)
    same = {"rope_theta": 3, "rope_local_base_freq": 2.0, "rope_scaling": WHOLE}
    assert read("gemma3", {"rope_parameters": SECTIONS} | same) == config


@pytest.mark.parametrize(
    ("older", "differ"),
    [
        ({"rope_theta": 4.0}, "rope_theta and the rope_theta of its rope section differ"),
        ({"rope_local_base_freq": 4.0}, "rope_local_base_freq and the rope_theta of its rope"),
        ({"rope_scaling": WHOLE | {"factor": 4.0}}, "rope_scaling and rope_parameters differ"),
        ({"rope_scaling": WHOLE | {"rope_theta": 4.0}}, "differ"),
        ({"rope_scaling": {"type": "default"}}, "rope_scaling and rope_parameters differ"),
        ({"rope_parameters": SECTIONS | {"factor": 4.0}}, "requires rope_parameters with 'factor'"),
        ({"sliding_window": None}, "requires sliding_window null"),
        ({"partial_rotary_factor": 0.5}, "requires partial_rotary_factor 0.5"),
    ],
)
def test_two_readings_are_refused(read, older, differ):
    with pytest.raises(InputError, match=differ):
        read("gemma3", {"rope_parameters": SECTIONS} | older, without=OLD - older.keys())


def test_it_is_written_in_the_older_keys(read, written):
    keys = written(read("gemma3"))
    expected = {
        "rope_theta": 500.0,
        "rope_local_base_freq": 50.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "attn_logit_softcapping": None,
    }
    assert {key: keys[key] for key in expected} == expected


def test_its_names_are_those_of_gemma_2_and_of_qwen_3(read, tensors):
    names = tensors(read("gemma3"))
    assert names["model.layers.1.self_attn.q_norm.weight"].path == ("layers", "query_norm", "scale")
    assert names["model.layers.1.self_attn.k_norm.weight"].path == ("layers", "key_norm", "scale")
    norm = names["model.layers.1.post_attention_layernorm.weight"]
    assert norm.path == ("layers", "attention_post_norm", "scale")
    assert len(names) == 2 + 3 * 13
