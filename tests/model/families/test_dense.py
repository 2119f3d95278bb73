"""Tests the table of dense families; test_family.py has their defaults."""

import pytest

from rl4p.model.families import FAMILIES
from rl4p.model.families.dense import inverse, reciprocal
from rl4p.model.rope import Llama3Scaling
from tests.golden.cases import LLAMA3


def test_keys_of_llama(read):
    config = read("llama")
    assert not config.attention_bias
    assert not config.tied_embedding
    assert config.activation == "silu"
    assert config.rope_scaling == Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=64
    )
    assert not config.sliding


def test_it_is_written_in_its_own_keys(read, written):
    keys = written(read("llama"))
    assert (keys["hidden_act"], keys["attention_bias"], keys["mlp_bias"]) == ("silu", False, False)
    assert keys["rope_scaling"] == LLAMA3


def test_it_has_no_biases(read, tensors):
    names = tensors(read("llama"))
    assert not [name for name in names if name.endswith("bias")]
    assert len(names) == 3 + 3 * 9


def test_its_keys_of_glm4(read, written):
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


@pytest.mark.parametrize(
    ("case", "suffixes"),
    [
        ("seed_oss", {"q_proj", "k_proj", "v_proj"}),
        ("seed_oss_biases", {"o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("olmo2", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("arcee_biases", {"q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"}),
        ("helium", {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}),
        ("ernie4_5", set()),
    ],
)
def test_which_projections_have_biases(read, tensors, case, suffixes):
    names = tensors(read(case))
    biases = [name for name in names if name.endswith("bias")]
    assert {name.split(".")[-2] for name in biases} == suffixes
    assert all(f"{name.removesuffix('bias')}weight" in names for name in biases)


def test_older_names_of_biases_are_read(read):
    older = {"qkv_bias": True, "bias": True}
    config = read("internlm3", older, without=["attention_bias", "mlp_bias"])
    assert config == read("internlm3")
    assert config.feed_forward_bias


def test_granite_divides_logits_and_clova_multiplies_them(read, written):
    granite, clova = read("granite"), read("hyperclovax")
    assert (granite.logits_multiplier, clova.logits_multiplier) == (1 / 1.7, 1.7)
    assert granite.query_scalar == clova.query_scalar == pytest.approx(25.0)
    for config in (granite, clova):
        assert written(config)["logits_scaling"] == 1.7
        assert written(config)["attention_multiplier"] == 0.2
    plain = read("hyperclovax", {"attention_multiplier": None})
    assert plain.query_scalar == pytest.approx(plain.head_width)


def test_a_factor_is_written_as_it_was_read():
    for n in range(1, 2000):
        for x in (n / 7, 1 / n, n * 1e-5):
            assert reciprocal(inverse(reciprocal, 1 / x)) == 1 / x
            assert (x**-2) ** -0.5 == x


def test_a_family_has_the_tensors_of_its_options_alone(read, tensors):
    assert "model.layers.0.post_norm1.weight" in tensors(read("hyperclovax"))
    assert "model.layers.0.post_norm1.weight" not in tensors(read("hyperclovax_pre"))
    assert "model.layers.0.mlp.gate_proj.weight" not in tensors(read("arcee"))
    assert "model.layers.0.input_layernorm.weight" not in tensors(read("olmo2"))
