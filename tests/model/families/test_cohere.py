"""Tests Command R: one norm for attention and feed-forward, layers without rotary embeddings."""


def test_its_keys(read, written):
    config = read("cohere")
    assert (config.parallel, config.mean_norm, config.interleaved_rope) == (True, True, True)
    assert (config.norm_epsilon, config.logits_multiplier) == (1e-4, 0.7)
    keys = written(config)
    assert (keys["layer_norm_eps"], keys["logit_scale"]) == (1e-4, 0.7)
    assert "rms_norm_eps" not in keys


def test_layers_of_full_attention_have_no_rotary_embeddings(read, written):
    config = read("cohere2")
    assert (config.sliding, config.unrotated) == ((True, False, True), (False, True, False))
    pattern = read("cohere2", {"sliding_window_pattern": 2}, without=["layer_types"])
    assert pattern == config
    whole = read("cohere2", {"layer_types": ["full_attention"] * 3})
    assert (whole.window, whole.sliding, whole.unrotated) == (None, (), (True,) * 3)
    for each in (config, whole, read("cohere2", {"layer_types": ["sliding_attention"] * 3})):
        assert read("cohere2", written(each)) == each


def test_a_layer_has_one_norm(read, tensors):
    names = tensors(read("cohere2"))
    assert [name for name in names if "layers.1." in name and "norm" in name] == [
        "model.layers.1.input_layernorm.weight"
    ]
