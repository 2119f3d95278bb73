"""Tests Llama: no biases, scaled positions."""

import pytest

from rl4p.errors import InputError
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


@pytest.mark.parametrize(
    ("key", "option", "default"),
    [
        ("tie_word_embeddings", "tied_embedding", False),
        ("rope_theta", "rope_theta", 10_000.0),
        ("rope_scaling", "rope_scaling", None),
        ("head_dim", "head_width", 8),
    ],
)
def test_an_absent_key_is_what_transformers_takes_it_for(read, key, option, default):
    assert getattr(read("llama", without=[key]), option) == default


def test_it_is_written_in_its_own_keys(read, written):
    keys = written(read("llama"))
    assert (keys["hidden_act"], keys["attention_bias"], keys["mlp_bias"]) == ("silu", False, False)
    assert keys["rope_scaling"] == LLAMA3


def test_it_has_no_biases(read, tensors):
    names = tensors(read("llama"))
    assert not [name for name in names if name.endswith("bias")]
    assert len(names) == 3 + 3 * 9


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mlp_bias": True}, "requires mlp_bias True"),
        ({"attention_bias": True}, "requires attention_bias True, which is not supported"),
        ({"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "requires partial_rotary_factor 0.5"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(read, change, sentence):
    with pytest.raises(InputError, match=rf"^a/config\.json.* {sentence}"):
        read("llama", change)
