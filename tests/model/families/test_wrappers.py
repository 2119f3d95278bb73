"""Tests text models within models of several modalities; tests/parity compares their numbers."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES
from rl4p.model.families.keys import Config, Keys
from rl4p.model.families.wrappers import (
    WRAPPERS,
    name_in_files,
    name_in_transformers,
    split,
    text_config,
    wrapped,
)
from rl4p.model.huggingface import read_config, read_params, write_model
from rl4p.model.tensor_files import stored_tensors
from tests.golden.cases import CASES, decoder_config

TEXT = {key: value for key, value in CASES["mistral"].items() if key != "tie_word_embeddings"}


def read_text(**keys):
    return text_config(Config(keys), "here")


@pytest.mark.parametrize(
    ("outside", "inside", "tied"),
    [(True, False, True), (False, True, False), (None, True, True), (None, None, None)],
)
def test_tied_embeddings_of_the_wrapper_rule(outside, inside, tied):
    keys = {"text_config": {"tie_word_embeddings": inside}, "tie_word_embeddings": outside}
    config, where = read_text(model_type="mistral3", **keys)
    assert (config["tie_word_embeddings"], config["model_type"]) == (tied, "mistral")
    assert where == "here, in text_config,"


def test_gemma_on_the_hub_leaves_out_what_is_the_default():
    """The text_config of gemma-3-4b has six keys."""
    six = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config, where = read_text(model_type="gemma3", text_config=six)
    read = FAMILIES["gemma3_text"].read_config(Keys(config, where))
    assert (read.vocabulary, read.heads, read.num_kv_heads, read.head_width) == (262208, 8, 4, 256)
    assert (read.max_positions, read.tied_embedding, read.norm_epsilon) == (131072, True, 1e-6)
    assert read.sliding.count(False) == 5


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"text_config": {"model_type": "llama"}}, "text_config of model_type 'llama', which is"),
        ({"text_config": None}, "has no 'text_config'"),
        ({"text_config": [1]}, "text_config must be dict"),
    ],
)
def test_what_is_refused(keys, sentence):
    with pytest.raises(InputError, match=sentence):
        read_text(model_type="mistral3", **keys)


def test_names_of_several_versions_of_transformers_are_read():
    tower = {"vision_tower.a": 1, "mtp.b": 2}
    inner = {"language_model.model.norm.weight": 3, "language_model.lm_head.weight": 4}
    outer = {"model.language_model.norm.weight": 3, "lm_head.weight": 4}
    plain = {"model.norm.weight": 3, "lm_head.weight": 4}
    for wrapper in ("gemma3", "qwen3_5"):
        assert split(wrapper, tower | outer) == split(wrapper, tower | inner) == (plain, tower)
    assert split("", outer) == (outer, {})


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_each_tensor_has_a_place_in_the_wrapper(wrapper):
    config = dataclasses.replace(decoder_config("mistral"), wrapper=wrapper)
    names = [tensor.name for tensor in FAMILIES["mistral"].names(config)]
    in_files = [name_in_files(wrapper, name) for name in names]
    assert not set(names) & {*in_files} - {"lm_head.weight"}
    assert split(wrapper, dict.fromkeys(in_files)) == (dict.fromkeys(names), {})
    modules = [name_in_transformers(wrapper, name) for name in names]
    start = "language_model.model" if wrapper == "llama4" else "model.language_model"
    assert f"{start}.layers.1.mlp.up_proj.weight" in modules


@pytest.mark.slow
def test_a_folder_comes_back_with_its_other_tensors(tmp_path):
    """A wrapper is written, read, and written again."""
    config = dataclasses.replace(decoder_config("mistral"), wrapper="mistral3")
    decoder = Decoder(config=config)
    params = decoder.init(jax.random.key(0))
    first, second = tmp_path / "first", tmp_path / "second"
    write_model(first, decoder, params, (1,), pad_id=0)
    add_tensors(first / "model.safetensors", {"vision_tower.a": np.ones((3, 2), np.float32)})
    assert read_config(first) == config
    read = read_params(first, decoder, None)
    jax.tree.map(np.testing.assert_array_equal, read, params)

    kept = {"config.json": {"vision_config": {"a": 1}, "text_config": {"bos_token_id": 3}}}
    write_model(second, decoder, read, (1,), pad_id=0, kept=kept, wrapper=first)
    stored = stored_tensors(second)
    assert stored.keys() == stored_tensors(first).keys()
    piece = next(stored["vision_tower.a"].pieces(slice(0, 3)))[1]
    np.testing.assert_array_equal(piece, np.ones((3, 2)))
    written = json.loads((second / "config.json").read_text())
    assert written["architectures"] == ["Mistral3ForConditionalGeneration"]
    assert (written["model_type"], written["pad_token_id"]) == ("mistral3", 0)
    assert written["vision_config"] == {"a": 1}
    assert written["text_config"]["bos_token_id"] == 3
    assert written["text_config"]["model_type"] == "mistral"


def test_a_wrapper_of_a_classifier_or_of_quantized_weights_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    for more, sentence in (
        ({"architectures": ["Gemma3ForSequenceClassification"]}, "classifier of several modalit"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantization_config \(fp8\)"),
    ):
        config = {"model_type": "mistral3", "text_config": TEXT} | more
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=sentence):
            read_config(tmp_path)


def test_what_stands_inside_and_outside():
    content = {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "dtype": "float32",
        "hidden_size": 8,
    }
    keys = wrapped("mistral3", content, {"hidden_size": 4, "use_cache": True})
    assert keys["tie_word_embeddings"]
    assert "architectures" not in keys["text_config"]
    assert keys["text_config"] == {
        key: content[key] for key in ("model_type", "tie_word_embeddings", "dtype", "hidden_size")
    } | {"use_cache": True}


def add_tensors(path, tensors):
    from safetensors.numpy import load_file, save_file

    save_file(load_file(path) | tensors, path)
