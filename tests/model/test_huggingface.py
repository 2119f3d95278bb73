import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl4p.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params, write_model

ENDS = (256, 258)


@pytest.fixture
def folder(tmp_path, policy, params):
    write_model(tmp_path, policy.decoder, params, ENDS)
    return tmp_path


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert {x.dtype for x in jax.tree.leaves(ours)} == {x.dtype for x in jax.tree.leaves(theirs)}


def read(folder, dtype="float32"):
    return read_params(folder, Decoder(config=read_config(folder)), dtype)


def edit(path, change):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_what_was_written_is_read_bit_for_bit(folder, policy, params):
    assert read_config(folder) == policy.decoder.config
    assert_equal(read(folder), params)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == list(ENDS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_untied_head_and_half_precision_too(tmp_path, policy, params, dtype):
    config = dataclasses.replace(policy.decoder.config, tied_embedding=False, rope_theta=5e5)
    params = params | {"head": params["embedding"] + 1}
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    write_model(tmp_path, Decoder(config=config), params, ENDS)
    assert read_config(tmp_path) == config
    assert_equal(read(tmp_path, dtype), params)
    assert load_file(tmp_path / "model.safetensors")["lm_head.weight"].shape == (264, 32)


def test_the_layout_is_that_of_qwen2(folder, params):
    """Names and [out, in] kernels, as a reader of another library expects them."""
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors) == 2 + 2 * 12
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], params["embedding"])
    np.testing.assert_array_equal(
        tensors["model.layers.1.mlp.gate_proj.weight"], params["layers"]["gate"]["kernel"][1].T
    )
    np.testing.assert_array_equal(
        tensors["model.layers.0.self_attn.k_proj.bias"], params["layers"]["key"]["bias"][0]
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (config["eos_token_id"], config["dtype"]) == (256, "float32")


def test_a_sharded_folder_is_read(folder, params):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for i, name in enumerate(sorted(tensors)):
        weight_map[name] = f"model-{i % 2 + 1:05}-of-00002.safetensors"
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in tensors if weight_map[n] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_equal(read(folder), params)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"names files .* not there: model-00002-of-00002\.safet"):
        read(folder)
    for broken in ('{"weight_map', "{}", "[]"):
        index.write_text(broken)
        with pytest.raises(InputError, match=r"model\.safetensors\.index\.json"):
            read(folder)


def test_an_index_that_names_the_wrong_file_is_named(folder):
    tensors = load_file(folder / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors")
    save_file({"other": norm}, folder / "b.safetensors")
    weight_map = dict.fromkeys(tensors, "model.safetensors") | {
        "model.norm.weight": "b.safetensors"
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(InputError, match=r"model\.norm\.weight is missing"):
        read(folder)


def test_a_tied_head_that_the_files_repeat_is_no_fault(folder, params):
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert_equal(read(folder), params)


def test_every_tensor_that_does_not_fit_is_named(folder):
    def change(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((32, 31), np.float32)
        tensors["model.layers.0.self_attn.q_norm.weight"] = np.zeros(8, np.float32)

    edit_tensors(folder, change)
    with pytest.raises(InputError) as error:
        read(folder)
    for sentence in (
        f"The weights in {folder} do not fit: ",
        "model.norm.weight is missing",
        "model.layers.1.mlp.up_proj.weight is missing",
        "model.layers.0.self_attn.q_norm.weight is not part of this model",
        "model.layers.0.self_attn.q_proj.weight should be (32, 32), is (32, 31)",
    ):
        assert sentence in str(error.value)


@pytest.mark.parametrize("keep", [0, 7, 100, 5000])
def test_a_cut_file_of_weights_is_named(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"model\.safetensors is not a whole safetensors file"):
        read(folder)


def test_a_folder_without_weights_is_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no model\.safetensors and no model\.safetensors\.index"):
        read(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not known; known are qwen2"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "asks for rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "asks for rope type 'llama3'"),
        ({"use_sliding_window": True}, "asks for a sliding window"),
        ({"hidden_act": "gelu"}, "asks for activation 'gelu'"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(folder, change, sentence):
    edit(folder / "config.json", lambda config: config | change)
    with pytest.raises(InputError, match=sentence):
        read_config(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"model\.path=.* has no config\.json"),
        ("{", r"config\.json is not JSON"),
        ("[]", r"config\.json is no JSON object"),
        (b"\xff", r"config\.json is not JSON"),
        ('{"model_type": "qwen2"}', r"config\.json has no 'num_attention_heads'"),
    ],
)
def test_a_broken_config_is_named(tmp_path, content, sentence):
    if content is not None:
        (tmp_path / "config.json").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    with pytest.raises(InputError, match=sentence):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"rope_theta": 1e6}, "rope_theta", 1e6),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta", 1e6),
        ({"head_dim": None}, "head_width", 8),
        ({"num_key_value_heads": None}, "key_value_heads", 4),
    ],
)
def test_spellings_of_several_versions_are_read(folder, change, field, value):
    edit(folder / "config.json", lambda config: config | change)
    assert getattr(read_config(folder), field) == value
