import logging

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES, family_of
from rl4p.model.families.harmless import DECIDED, HARMLESS, check_keys, kept_keys
from rl4p.model.families.keys import Config, Keys
from tests.golden.cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_what_rl4p_writes_is_read_or_harmless(case, caplog):
    config = family_of(CASES[case], "x").read_config(Keys(CASES[case], "x"))
    written = Config(FAMILIES[config.family].write_config(config))
    family_of(written | {"model_type": config.family}, "x").read_config(Keys(written, "x"))
    check_keys(written, "x")
    assert not caplog.text


@pytest.mark.parametrize("case", CASES)
def test_what_an_export_keeps_does_not_change_the_model(case):
    config = family_of(CASES[case], "x").read_config(Keys(CASES[case], "x"))
    family = FAMILIES[config.family]
    written = {"model_type": config.family} | family.write_config(config)
    exported = kept_keys(CASES[case]) | written
    assert family.read_config(Keys(exported, "x")) == family.read_config(Keys(written, "x"))
    assert CASES[case].keys() - exported.keys() <= {*DECIDED}


def test_a_wrapper_keeps_its_keys_and_those_of_its_text_model():
    text = {"bos_token_id": 2, "use_cache": False, "dtype": "bfloat16"}
    wrapper = {"text_config": text, "vision_config": {"dtype": 1}, "image_token_id": 9, "dtype": 1}
    kept = {"text_config": {"bos_token_id": 2, "use_cache": False}, "vision_config": {"dtype": 1}}
    assert kept_keys(wrapper) == kept | {"image_token_id": 9}


def test_no_key_is_listed_twice():
    keys = [key for group in HARMLESS.values() for key in group]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("torch_dtype", "bfloat16"), ("dtype", "float16"), ("use_cache", False)],
        *[("attention_dropout", 0.1), ("initializer_range", 0.1), ("pretraining_tp", 2)],
        *[("temperature", 0.6), ("max_new_tokens", 2048), ("bos_token_id", 1)],
        *[("quantization_config", None), ("per_layer_config", {}), ("stop_strings", None)],
        ("is_encoder_decoder", False),
    ],
)
def test_harmless_keys_and_keys_without_a_value_need_no_words(caplog, key, value):
    with caplog.at_level(logging.INFO):
        check_keys({key: value}, "a/config.json")
    assert not caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("stop_strings", ["\n\n"]), ("suppress_tokens", [1]), ("logits_scaling", 8.0)],
        *[("forced_eos_token_id", 2), ("bad_words_ids", [[1]]), ("residual_multiplier", 0.2)],
        *[("qk_norm", True), ("rotary_dim", 4), ("rope_interleaved", False)],
    ],
)
def test_unknown_keys_are_named(caplog, key, value):
    check_keys({key: value, "top_p": 0.9}, "a/config.json")
    assert f"a/config.json has keys that are not read: '{key}'." in caplog.text


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, r"quantization_config \(awq\): quant"),
        ({"quantization_config": {"bits": 4}}, "has a quantization_config: quantized weights are"),
        ({"quantization_config": "fp8"}, "has a quantization_config: quantized weights are"),
        ({"compression_config": {"quant_method": "x"}}, r"compression_config \(x\): quantized"),
        ({"per_layer_config": {"1": {"head_dim": 4}}}, "has per_layer_config, which is not supp"),
        ({"transformers_weights": "b.safetensors"}, "has transformers_weights, which is not"),
        ({"is_encoder_decoder": True}, "has is_encoder_decoder, which is not supported"),
        ({"pruned_heads": {"0": [1]}}, "has pruned_heads, which is not supported"),
    ],
)
def test_keys_that_change_the_model_are_refused(config, sentence):
    with pytest.raises(InputError, match=f"^here {sentence}|^here has a {sentence}"):
        check_keys(config, "here")
