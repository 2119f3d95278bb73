import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl4p.base.errors import InputError
from rl4p.model import model_tensors as module
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params, write_model
from rl4p.model.model_tensors import model_tensors
from rl4p.model.tensor_files import stored_tensors
from tests.golden.cases import decoder_config, make_tensors, to_params


def test_stacked_and_separate_layers_give_the_same_tensors(policy, params):
    def own(tensor, array):
        return array.dtype

    stacked = model_tensors(policy.decoder, params, own)
    separate = model_tensors(policy.decoder, policy.for_sampling(params), own)
    assert [x.name for x in stacked] == [x.name for x in separate]
    assert len({x.name for x in stacked}) == len(stacked)
    for one, other in zip(stacked, separate, strict=True):
        pieces = [np.concatenate(list(x.parts())) for x in (one, other)]
        assert pieces[0].shape == tuple(one.shape)
        np.testing.assert_array_equal(pieces[0], pieces[1])
    size = sum(x.bytes for x in stacked)
    assert size == 4 * sum(int(np.prod(x.shape)) for x in stacked)


def test_tensors_are_made_in_the_dtype_of_the_files(policy, params):
    tensors = model_tensors(policy.decoder, params, lambda tensor, array: jnp.bfloat16)
    for tensor in tensors:
        assert {piece.dtype for piece in tensor.parts()} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_the_rows_of_an_embedding_are_made_a_few_at_a_time(policy, params, monkeypatch, size):
    monkeypatch.setattr(module, "PART_BYTES", size)
    tensor = model_tensors(policy.decoder, params, lambda tensor, array: array.dtype)[0]
    parts = list(tensor.parts())
    rows = max(1, size // (4 * 32))
    assert [len(part) for part in parts[:-1]] == [rows] * (len(parts) - 1)
    assert len(parts) == -(-264 // rows)
    np.testing.assert_array_equal(np.concatenate(parts), params["embedding"])


@pytest.mark.parametrize("size", [1, 1000])
def test_memory_of_the_host_is_read_in_place(policy, params, monkeypatch, size):
    monkeypatch.setattr(module, "PART_BYTES", size)
    tensors = model_tensors(policy.decoder, params, lambda tensor, array: array.dtype)
    here = [np.concatenate(list(tensor.parts())) for tensor in tensors]
    monkeypatch.setattr(module, "host_view", lambda array: None)
    made = [np.concatenate(list(tensor.parts())) for tensor in tensors]
    for one, other in zip(here, made, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_parameters_that_were_written_can_be_donated():
    parameter = jnp.arange(2.0**16).reshape(256, 256)
    pointer = parameter.unsafe_buffer_pointer()
    assert module.host_view(parameter).ctypes.data == pointer
    next_one = jax.jit(lambda x: x + 1, donate_argnums=0)(parameter)
    assert next_one.unsafe_buffer_pointer() == pointer


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FIRST = "model.layers.0.self_attn.q_proj."


@pytest.fixture
def folder(tmp_path, policy, params):
    write_model(tmp_path, policy.decoder, params, (256,))
    return tmp_path


def read(folder, change):
    """Reads the folder after a change of its tensors."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors")
    return read_params(folder, Decoder(config=read_config(folder)), "float32")


def refusal(folder, change):
    with pytest.raises(InputError) as error:
        read(folder, change)
    return str(error.value).replace(str(folder), "HERE")


def renamed(rename):
    return lambda tensors: {rename(name): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_head_that_repeats_the_embedding_is_no_fault(folder, params, dtype, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 100)  # the embedding has 264

    def change(tensors):
        tensors[EMBEDDING] = tensors[EMBEDDING].astype(dtype)
        tensors[HEAD] = tensors[EMBEDDING].astype("float32")

    embedding = read(folder, change)["embedding"]
    np.testing.assert_array_equal(embedding, params["embedding"].astype(dtype).astype("float32"))


@pytest.mark.parametrize(
    "head",
    [
        lambda embedding: np.roll(embedding, 1, axis=0),
        lambda embedding: np.where(np.arange(264)[:, None] == 263, embedding + 1e-6, embedding),
        lambda embedding: embedding.astype(np.float16),
        lambda embedding: embedding[:-1],
        lambda embedding: embedding.T,
        lambda embedding: embedding.astype(np.int64),
    ],
    ids=range(6),
)
def test_a_head_that_differs_from_the_embedding_is_refused(folder, head, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 100)
    sentence = refusal(folder, lambda t: t.update({HEAD: np.ascontiguousarray(head(t[EMBEDDING]))}))
    assert sentence.startswith(f"HERE has a {HEAD} that differs from {EMBEDDING}, although tie_")


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"model.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: f"base_model.model.{name}",
        lambda name: f"pretrained_model.{name}",
        lambda name: f"_fsdp_wrapped_module.{name}",
        lambda name: f"language_model.{name}",
        lambda name: name.removeprefix("model."),
        lambda name: name.replace(".self_attn.", "._orig_mod.self_attn."),
        lambda name: name.replace(".mlp.", "._checkpoint_wrapped_module.mlp."),
        lambda name: name.replace("q_proj.weight", "q_proj.base_layer.weight"),
        lambda name: f"_orig_mod.{name}" if "norm" in name else name,
    ],
    ids=range(13),
)
def test_the_names_of_a_wrapped_model_are_refused_with_one_of_them(folder, rename):
    sentence = refusal(folder, renamed(rename))
    assert "HERE have other names than the model: " in sentence
    assert " in place of model." in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({FIRST + "weight_scale": np.ones(1, np.float32)}, "weight_scale"),
        ({FIRST + "weight_scale_inv": np.ones((1, 1), np.float32)}, "weight_scale_inv"),
        ({FIRST + "scales": np.ones((1, 1), np.float16)}, "scales"),
        ({FIRST + "qweight": np.ones((1, 1), np.int32)}, "qweight"),
        ({FIRST + "SCB": np.ones(1, np.float32)}, "SCB"),
        ({FIRST + "weight.absmax": np.ones(1, np.uint8)}, "weight.absmax"),
        ({FIRST + "weight.quant_map": np.ones(1, np.float32)}, "weight.quant_map"),
        ({"model.layers.1.self_attn.k_scale": np.ones(1, np.float32)}, "k_scale"),
        ({FIRST + "weight": np.ones((32, 32), np.int8)}, r"weight is I8"),
        ({FIRST + "weight": np.ones((16, 32), np.uint8)}, r"weight is U8"),
    ],
)
def test_quantized_weights_are_refused_as_such(folder, change, tensor):
    sentence = refusal(folder, lambda tensors: tensors.update(change))
    assert sentence.startswith("The weights in HERE are quantized (model.layers.")
    assert f"{tensor})" in sentence


def test_the_first_tensors_that_do_not_fit_are_named_and_the_others_counted(folder):
    def change(tensors):
        del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"] = np.zeros((32, 31), np.float32)
        for i in range(1000):
            tensors[f"model.layers.{i}.self_attn.q_norm.weight"] = np.zeros(8, np.float32)

    sentence = refusal(folder, change)
    for part in (
        "The weights in HERE do not match the model: ",
        "model.norm.weight is missing",
        "model.layers.1.mlp.up_proj.weight is missing",
        "model.layers.0.self_attn.q_norm.weight is not part of this model",
        "model.layers.0.self_attn.q_proj.weight must have shape (32, 32), not (32, 31)",
        "; and 998 more.",
    ):
        assert part in sentence
    assert len(sentence) < 500


def test_an_index_that_counts_other_bytes_is_named(folder, policy, params, caplog):
    (folder / "model.safetensors").unlink()
    write_model(folder, policy.decoder, params, (256,), shard_bytes=20_000)
    with caplog.at_level(logging.WARNING):
        read_params(folder, policy.decoder, None)
        assert not caplog.text
        index = folder / "model.safetensors.index.json"
        index.write_text(index.read_text().replace('"total_size": ', '"total_size": 1'))
        read_params(folder, policy.decoder, None)
    assert "index.json counts 1" in caplog.text


@pytest.mark.parametrize("on", [jnp.asarray, np.asarray], ids=["device", "host"])
def test_a_number_without_an_axis_comes_back(on, tmp_path):
    """The constants of xIELU stay float32 in files whose matrices are bfloat16."""
    decoder = Decoder(config=decoder_config("apertus"))
    params = jax.tree.map(on, to_params(decoder.config, make_tensors(decoder.config)))
    write_model(tmp_path, decoder, params, (1,), dtype="bfloat16")
    stored = stored_tensors(tmp_path)["model.layers.1.mlp.act_fn.eps"]
    assert (stored.shape, stored.kind) == ((), "F32")
    again = read_params(tmp_path, decoder, "bfloat16")["layers"]["xielu"]
    for name in ("slope", "edge"):
        np.testing.assert_array_equal(again[name], params["layers"]["xielu"][name])
