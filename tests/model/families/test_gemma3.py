"""Tests Gemma 3: two rope bases, full and sliding layers, normed queries and keys."""

from rl4p.model.rope import LinearScaling


def test_its_keys(read):
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


def test_caps_are_read_where_there_are_any(read):
    config = read("gemma3", {"attn_logit_softcapping": 5, "final_logit_softcapping": 7.0})
    assert (config.attention_softcap, config.logits_softcap) == (5.0, 7.0)


def test_sections_of_rope_parameters_come_before_the_older_keys(read):
    sections = {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2.0},
    }
    config = read("gemma3", {"rope_scaling": None, "rope_parameters": sections})
    assert (config.rope_theta, config.local_rope_theta) == (3.0, 2.0)
    assert config.rope_scaling == LinearScaling(factor=2.0)


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
