"""Tests GLM-4: half of a head is rotated in pairs of neighbours, with norms around each block."""

import pytest

from rl4p.model.families import FAMILIES


def test_its_keys(read, written):
    config = read("glm4")
    assert (config.head_width, config.rotary_width) == (16, 8)
    assert config.interleaved_rope
    assert (config.pre_norms, config.post_norms, config.attention_bias) == (True,) * 3
    assert written(config)["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize(("factor", "width"), [(1.0, 16), (0.25, 4)])
def test_another_part_may_be_rotated(read, written, factor, width):
    config = read("glm4", {"partial_rotary_factor": factor})
    assert config.rotary_width == width
    assert read("glm4", written(config)) == config


def names_of(config):
    return {tensor.name: tensor for tensor in FAMILIES["glm4"].names(config)}


def test_it_may_have_no_biases(read, written):
    config = read("glm4", {"attention_bias": False})
    assert read("glm4", written(config)) == config
    assert not any(path.endswith("bias") for path in names_of(config))
    assert any(path.endswith("q_proj.bias") for path in names_of(read("glm4")))


def test_its_norms_have_names_of_their_own(read):
    names = names_of(read("glm4"))
    for name, path in (
        ("input_layernorm", "attention_norm"),
        ("post_self_attn_layernorm", "attention_post_norm"),
        ("post_attention_layernorm", "feed_forward_norm"),
        ("post_mlp_layernorm", "feed_forward_post_norm"),
    ):
        assert names[f"model.layers.1.{name}.weight"].path == ("layers", path, "scale")
