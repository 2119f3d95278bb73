"""Tests Qwen 3: queries and keys normed in each head, no biases."""


def test_its_keys(read):
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
