import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl4p.base.errors import InputError, RunError
from rl4p.model import tensor_files
from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES, Tensor, TensorPart
from rl4p.model.huggingface import (
    aligned_empty,
    misread_by_peft,
    read_config,
    read_params,
    read_part,
    write_adapter,
    write_model,
    write_policy,
)
from rl4p.model.lora import LoRA
from rl4p.model.tensor_files import stored_tensors
from tests.golden.cases import decoder_config, make_tensors, to_params

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
    """Other libraries expect these names and [out, in] kernels."""
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


def test_a_divided_folder_is_read(folder, policy, params):
    """Files have at most 20 kB; the 32 x 264 embedding alone is larger."""
    (folder / "model.safetensors").unlink()
    write_model(folder, policy.decoder, params, ENDS, shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("*.safetensors"))
    assert {path.name for path in files} == set(index["weight_map"].values())
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 2
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in jax.tree.leaves(params))
    assert_equal(read(folder), params)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_of_the_files_can_be_kept(folder, policy, params, dtype):
    write_model(folder, policy.decoder, params, ENDS, dtype=dtype)
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype
    assert_equal(read(folder, None), jax.tree.map(lambda x: x.astype(dtype), params))
    widened = jax.tree.map(lambda x: x.astype(dtype).astype("float32"), params)
    assert_equal(read(folder), widened)


def test_layers_of_several_dtypes_meet_in_float32(folder, policy, params):
    write_model(folder, policy.decoder, params, ENDS, dtype="bfloat16")

    def change(tensors):
        name = "model.layers.1.input_layernorm.weight"
        tensors[name] = tensors[name].astype(np.float32) + np.float32(1e-6)

    edit_tensors(folder, change)
    layers = read(folder, None)["layers"]
    assert layers["attention_norm"]["scale"].dtype == "float32"
    assert layers["feed_forward_norm"]["scale"].dtype == "bfloat16"


def test_a_folder_that_is_no_model_is_refused_before_its_files_are_named(tmp_path, caplog):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_config(tmp_path)
    assert not caplog.text


def test_a_whole_number_dtype_is_refused(folder):
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": np.ones(32, np.int64)}))
    with pytest.raises(InputError, match=r"model\.norm\.weight is I64, not one of F32, F16, BF16"):
        read(folder)


def test_a_file_is_read_in_pieces_that_do_not_matter(folder, params, monkeypatch):
    monkeypatch.setattr(tensor_files, "PIECE_BYTES", 7 * 32 * 4)
    assert_equal(read(folder), params)


@pytest.mark.parametrize("rows", [1, 3, 99])
def test_parts_whose_rows_stand_in_runs_are_read(tmp_path, monkeypatch, rows):
    """Three heads with two rows of one parameter and three of another; some rows of each."""
    monkeypatch.setattr(tensor_files, "PIECE_BYTES", rows * 4 * 4)
    whole = np.arange(60, dtype=np.float32).reshape(15, 4)
    save_file({"both": whole}, tmp_path / "model.safetensors")
    heads = whole.reshape(3, 5, 4)
    for start, run, expected in ((0, 2, heads[:, :2]), (2, 3, heads[:, 2:])):
        part = TensorPart(axis=0, start=start, step=5, size=15, run=run)
        tensor = Tensor(("x",), 0, None, "both", True, part)
        expected = expected.reshape(-1, 4).T[None]
        for some in (slice(None), slice(1, 5)):
            ours = read_part(
                (slice(None), slice(1, 3), some),
                tensors=[tensor],
                stored=stored_tensors(tmp_path),
                shape=expected.shape,
                dtype=whole.dtype,
            )
            np.testing.assert_array_equal(ours, expected[:, 1:3, some])


def test_the_cpu_takes_what_was_read_without_a_copy():
    memory = aligned_empty((3, 5), np.dtype("float32"))
    assert jax.device_put(memory).unsafe_buffer_pointer() == memory.ctypes.data


# Four devices, with parameters replicated and then sharded along each of their axes.
FOUR_DEVICES = """
import sys, jax, numpy as np
from pathlib import Path
from jax.sharding import NamedSharding, PartitionSpec
from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params, read_part, stored_tensors
from rl4p.model.families import FAMILIES

folder = Path(sys.argv[1])
decoder = Decoder(config=read_config(folder))
auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((2, 2), ("a", "b"), (auto, auto))
plain = read_params(folder, decoder, "float32")
everywhere = read_params(folder, decoder, "float32", Mesh(dp=4))
divided = read_params(folder, decoder, "float32", Mesh(dp=1, fsdp=2, tp=2))
for a, b, c in zip(*map(jax.tree.leaves, (plain, everywhere, divided)), strict=True):
    assert len(b.sharding.device_set) == 4 and b.sharding.is_fully_replicated
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)
up = divided["layers"]["up"]["kernel"]
assert up.addressable_shards[0].data.size * 4 == up.size
for spec in (PartitionSpec("a"), PartitionSpec(None, "b"), PartitionSpec(None, "a", "b")):
    stored, names = stored_tensors(folder), FAMILIES["qwen2"].names(decoder.config)
    tensors = [tensor for tensor in names if tensor.path == ("layers", "up", "kernel")]
    whole = plain["layers"]["up"]["kernel"]
    array = jax.make_array_from_callback(
        whole.shape,
        NamedSharding(mesh, spec),
        lambda index: read_part(
            index, tensors=tensors, stored=stored, shape=whole.shape, dtype=whole.dtype
        ),
    )
    np.testing.assert_array_equal(array, whole)
"""


@pytest.mark.slow
def test_parameters_go_to_the_devices_that_hold_them(folder, on_devices):
    command = [sys.executable, "-c", FOUR_DEVICES, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=on_devices(4))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"model\.path=.* has no config\.json"),
        ("{", r"config\.json is not JSON"),
        ("[]", r"config\.json is not a JSON object"),
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


@pytest.fixture
def classifier(policy, params):
    """Returns a classifier with three labels, and neither a tied nor an untied token head."""
    config = dataclasses.replace(policy.decoder.config, labels=3, tied_embedding=False)
    return Decoder(config=config), params | {"score": params["embedding"][5:8] + 1}


def test_a_classifier_comes_back_whole(tmp_path, classifier):
    write_model(tmp_path, *classifier, ENDS)
    assert read_config(tmp_path) == classifier[0].config
    assert_equal(read(tmp_path), classifier[1])
    tensors = load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(tensors["score.weight"], classifier[1]["score"])
    assert "lm_head.weight" not in tensors
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForSequenceClassification"]
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


def test_fresh_classifiers_have_scores_and_no_head(classifier):
    params = jax.jit(classifier[0].init)(jax.random.key(0))
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, classifier[1])
    assert 0.01 < np.std(params["score"]) < 0.03


def test_scores_are_as_many_as_config_json_has_labels(tmp_path, classifier):
    write_model(tmp_path, *classifier, ENDS)
    edit(tmp_path / "config.json", lambda config: config | {"id2label": None})
    assert read_config(tmp_path).labels == 2  # transformers writes null for two labels
    with pytest.raises(InputError, match=r"must have shape \(2, 32\), not \(3"):
        read(tmp_path)


def test_a_language_model_that_says_it_is_a_classifier_is_refused(folder):
    edit(
        folder / "config.json", lambda c: c | {"architectures": ["Qwen2ForSequenceClassification"]}
    )
    with pytest.raises(InputError, match=r"score\.weight is missing"):
        read(folder)


def test_frequencies_that_old_files_hold_are_passed_over(folder, params):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(folder, lambda tensors: tensors.update({name: np.zeros(4, np.float32)}))
    assert_equal(read(folder), params)


@pytest.mark.parametrize("pad_id", [None, 257])
def test_an_export_names_its_special_tokens(tmp_path, policy, params, pad_id):
    write_model(tmp_path, policy.decoder, params, ENDS, pad_id=pad_id)
    config, generation = (
        json.loads((tmp_path / name).read_text())
        for name in ("config.json", "generation_config.json")
    )
    assert (config["eos_token_id"], generation["eos_token_id"]) == (ENDS[0], list(ENDS))
    assert config.get("pad_token_id") == generation.get("pad_token_id") == pad_id
    assert generation["do_sample"] is True


@pytest.mark.parametrize(
    ("options", "modules", "words"),
    [
        ({}, ["up_proj"], ""),
        ({"experts": 4}, ["q_proj"], ""),
        (
            {"experts": 4},
            ["q_proj", "up_proj"],
            "may take adapters of up_proj for those of",
        ),
        ({"family": "nemotron_h"}, ["out_proj"], "refuses adapters of out_proj"),
    ],
)
def test_adapters_that_peft_misreads_are_named(options, modules, words):
    config = SimpleNamespace(**{"family": "qwen2", "experts": 0} | options)
    said = misread_by_peft(config, modules)
    assert said.startswith(words)
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("base", "name", "revision"),
    [("Qwen/Qwen2.5-0.5B@v1", "Qwen/Qwen2.5-0.5B", "v1"), ("/a/folder", "/a/folder", None)],
)
def test_an_adapter_is_written_as_peft_reads_it(tmp_path, policy, params, base, name, revision):
    """The file has A [in, rank] and B [rank, out] transposed."""
    decoder = dataclasses.replace(policy.decoder, lora=LoRA(rank=2, alpha=6.0, targets="up|query"))
    adapters = decoder.lora.init(jax.random.key(0), params)
    adapters = jax.tree.map(lambda x: x + np.float32(1), adapters)
    write_adapter(tmp_path, decoder, adapters, base)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "revision": revision,
        "r": 2,
        "lora_alpha": 6.0,
        "target_modules": ["q_proj", "up_proj"],
        "bias": "none",
        "lora_dropout": 0.0,
    }
    assert {key: config[key] for key in expected} == expected
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 2
    for layer in range(2):
        for ours, theirs in (("up", "mlp.up_proj"), ("query", "self_attn.q_proj")):
            for key, letter in (("lora_a", "A"), ("lora_b", "B")):
                np.testing.assert_array_equal(
                    tensors[f"base_model.model.model.layers.{layer}.{theirs}.lora_{letter}.weight"],
                    np.asarray(adapters["layers"][ours][key][layer]).T,
                )


def test_an_unfinished_export_leaves_nothing(tmp_path, policy, params, monkeypatch):
    def fails(folder):
        raise OSError("No space left")

    monkeypatch.setattr(policy.tokenizer, "save_pretrained", fails)
    with pytest.raises(RunError, match=r"/out could not be written: No space left\.$"):
        write_policy(tmp_path / "in" / "out", policy, params)
    assert not list((tmp_path / "in").iterdir())


def test_an_export_does_not_write_over_a_folder_that_holds_something(tmp_path, policy, params):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(RunError, match="could not be written"):
        write_policy(tmp_path / "out", policy, params)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.slow
def test_a_constant_is_float32_in_memory_and_in_files(tmp_path):
    """A correction of the choice of experts; its difference to another decides."""
    config = decoder_config("solar_open")
    params = to_params(config, make_tensors(config))
    write_model(tmp_path, Decoder(config=config), params, ENDS, dtype="bfloat16")
    stored = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert {key for key, x in stored.items() if x.dtype == np.float32} == {
        name.replace("1", str(layer)) for layer in range(3)
    }
    for dtype in ("bfloat16", None, "float32"):
        experts = read(tmp_path, dtype)["layers"]["experts"]
        correction = experts["router_correction"]
        assert (correction.dtype, experts["router"].dtype) == ("float32", dtype or "bfloat16")
        np.testing.assert_array_equal(correction, params["layers"]["experts"]["router_correction"])


def test_what_the_model_lacks_is_left_out_and_named(tmp_path, caplog, monkeypatch):
    config = decoder_config("solar_open")
    write_model(tmp_path, Decoder(config=config), to_params(config, make_tensors(config)), ENDS)
    edit_tensors(tmp_path, lambda x: x.update({"model.layers.3.enorm.weight": np.ones(3)}))
    with pytest.raises(InputError, match=r"layers\.3\.enorm\.weight is not part of this model"):
        read(tmp_path)
    family = dataclasses.replace(FAMILIES["solar_open"], unused=r"model\.layers\.{layers}\..*")
    monkeypatch.setitem(FAMILIES, "solar_open", family)
    read(tmp_path)
    assert "are left out: model.layers.3.enorm.weight." in caplog.text
