"""Tests Llama: no biases, scaled positions."""

from rl4p.model.rope import Llama3Scaling
from tests.golden.cases import LLAMA3


def test_its_keys(read):
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
