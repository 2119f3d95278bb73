import json
import logging

import pytest

from rl4p.base.errors import InputError
from rl4p.model.folder import check_files, tokenizer_files

INDEX = "model.safetensors.index.json"


def make(folder, *names, index=()):
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    if index:
        weight_map = {str(i): name for i, name in enumerate(index)}
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize(
    ("names", "index"),
    [
        (("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"), ()),
        (("model-00001-of-00001.safetensors",), ("model-00001-of-00001.safetensors",)),
        (("model.safetensors",), ("model.safetensors",)),
        (("merges.txt", "vocab.json", "tokenizer.model", "chat_template.jinja"), ()),
        (("README.md", "LICENSE", "LICENSE.txt", ".gitattributes", ".cache/x", "a.png"), ()),
        (("training_args.bin", "trainer_state.json", "optimizer.pt", "checkpoint-7/x"), ()),
        (("modeling_own.py", "preprocessor_config.json", "additional_chat_templates/a.jinja"), ()),
    ],
)
def test_files_that_are_read_or_harmless_need_no_words(tmp_path, caplog, names, index):
    with caplog.at_level(logging.INFO):
        check_files(make(tmp_path, *names, index=index))
    assert not caplog.text


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_model.bin", "model.pt", "model.gguf", "consolidated.safetensors", "model.onnx"),
        *("model.fp16.safetensors", "model-00001-of-00009.safetensors", "quantize_config.json"),
        *("value_head.safetensors", "params.json"),
    ],
)
def test_other_files_are_named(tmp_path, caplog, name):
    shard = "model-00001-of-00002.safetensors"
    check_files(make(tmp_path, name, shard, index=(shard,)))
    assert f"{tmp_path} has files that are not read: {name}." in caplog.text


@pytest.mark.parametrize(
    "names",
    [
        ("adapter_config.json",),
        ("adapter_config.json", "adapter_model.safetensors"),
        ("adapter_model.safetensors",),
        ("adapter_model.bin",),
        ("adapters.safetensors",),
        ("adapter_config.json", "config.json", "model.safetensors"),
        ("adapter_model.safetensors", "config.json", "model.safetensors"),
        ("adapter_config.json", "config.json", "tokenizer.json"),
    ],
)
def test_an_adapter_is_refused_with_the_way_to_merge_it(tmp_path, names):
    with pytest.raises(InputError, match=r"has an adapter \(adapter.*\), .* merge_and_unload"):
        check_files(make(tmp_path, *names))


@pytest.mark.parametrize(
    "index",
    [
        ("model-00001-of-00001.safetensors",),
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        ("model.safetensors", "model-00002-of-00002.safetensors"),
        ("gone.safetensors",),
    ],
)
def test_an_old_index_beside_a_new_file_is_refused(tmp_path, index):
    with pytest.raises(InputError, match=r"has two sets of weights, model\.safetensors and the"):
        check_files(make(tmp_path, "model.safetensors", index=index))


def test_an_index_without_files_is_refused_beside_a_file_too(tmp_path):
    with pytest.raises(InputError, match="has two sets of weights"):
        check_files(make(tmp_path, "model.safetensors", INDEX))


def test_the_files_of_a_tokenizer_are_all_that_an_export_copies(tmp_path):
    names = ["merges.txt", "spiece.model", "tokenizer.json", "tokenizer_config.json"]
    make(tmp_path, *names, "config.json", "README.md", "model.safetensors")
    assert [path.name for path in tokenizer_files(tmp_path)] == names
