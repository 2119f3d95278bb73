"""Tests GPT-OSS: sinks, biases, pairs of gate and up, older names of keys."""

import dataclasses

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES, TensorPart
from rl4p.model.families.harmless import check_keys
from rl4p.model.rope import YarnScaling

FIRST = YarnScaling(
    factor=32.0,
    original_max_positions=4096,
    truncated=False,
    magnitude=pytest.approx(1 + 0.1 * 3.4657359),  # ln 32
)


def test_its_keys(read):
    config = read("gpt_oss")
    assert (config.attention_bias, config.output_bias, config.attention_sinks) == (True,) * 3
    assert (config.experts, config.chosen_experts, config.feed_forward_width) == (6, 2, 48)
    assert config.expert_bias
    assert config.normalized_experts
    assert config.activation == "clamped_swish"
    assert config.sliding == (True, False, True)
    assert not config.rope_scaling.truncated


def test_older_files_have_other_names(read):
    change = {"num_experts_per_tok": None, "num_local_experts": None}
    older = {"experts_per_token": 3, "num_experts": 5, "initial_context_length": 64}
    config = read("gpt_oss", change | older)
    assert (config.experts, config.chosen_experts) == (5, 3)
    with pytest.raises(InputError, match="initial_context_length and its rope section differ"):
        read("gpt_oss", {"initial_context_length": 128})


def test_a_file_without_a_rope_section_is_scaled_as_the_first_models(read, written):
    assert read("gpt_oss", without=["rope_scaling"]).rope_scaling == FIRST
    plain = dataclasses.replace(read("gpt_oss"), rope_scaling=None)
    assert read("gpt_oss", written(plain), without=["rope_scaling"]) == plain


def test_gate_and_up_are_neighbours_in_one_tensor(read, written):
    config = read("gpt_oss")
    names = [*FAMILIES[config.family].names(config)]
    gate_up = [x for x in names if x.name == "model.layers.1.mlp.experts.gate_up_proj"]
    assert [(x.path[-1], x.part) for x in gate_up] == [
        ("gate", TensorPart(2, 0, 2, 96)),
        ("up", TensorPart(2, 1, 2, 96)),
    ]
    router = next(x for x in names if x.name == "model.layers.2.mlp.router.weight")
    assert (router.path, router.layer, router.transposed) == (
        ("layers", "experts", "router"), 2, True
    )  # fmt: skip
    assert len({x.name for x in names}) == 3 + 3 * 17
    assert written(config)["num_local_experts"] == 6


def test_mxfp4_is_read_and_no_other_method():
    check_keys({"quantization_config": {"quant_method": "mxfp4"}}, "here", "mxfp4")
    for method, read in (("mxfp4", None), ("gptq", "mxfp4"), ("", "mxfp4")):
        with pytest.raises(InputError, match="quantized weights are not"):
            check_keys({"quantization_config": {"quant_method": method, "a": 1}}, "here", read)
