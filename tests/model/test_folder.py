import json
import logging
import time

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.model.folder import SHIPPED, check_files, lasting_name, model_folder, tokenizer_files

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


NAME = "owner/a-model_1.5"


@pytest.fixture
def download(monkeypatch):
    """Replaces the hub, which no test contacts; records the calls and returns a set answer."""

    class Download:
        answer = None

        def __call__(self, name, **options):
            self.name, self.options = name, options
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    download = Download()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return download


def http(kind):
    class Response:
        status_code, headers, text, request = 500, {}, "", None

    return kind("a\nlong message.", response=Response())  # type: ignore[arg-type]


def test_a_folder_wins_over_a_model_of_the_hub(tmp_path, monkeypatch, download):
    folder = tmp_path / NAME
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_folder(NAME).resolve() == folder
    assert model_folder(str(folder)) == folder
    assert model_folder("rl4p/tiny") == SHIPPED["rl4p/tiny"]
    assert not hasattr(download, "name")


def test_a_model_in_an_object_store_is_the_same_model(url, download):
    files = [path.name for path in SHIPPED["rl4p/tiny"].iterdir() if path.is_file()]
    ObjectStore(url).upload(files, SHIPPED["rl4p/tiny"])
    ObjectStore(url).write("pytorch_model.bin", b"a pickle")
    names = {path.name for path in model_folder(url, weights=False).iterdir()}
    assert "config.json" in names
    assert not names & {"model.safetensors", "pytorch_model.bin"}
    copy = model_folder(url) / "model.safetensors"
    assert copy.read_bytes() == (SHIPPED["rl4p/tiny"] / copy.name).read_bytes()
    assert lasting_name(url) == url
    assert not hasattr(download, "name")


@pytest.mark.parametrize(("path", "revision"), [(NAME, None), (f"{NAME}@v1", "v1")])
def test_a_name_is_fetched_without_pickles_and_second_copies(tmp_path, download, path, revision):
    from huggingface_hub.utils import filter_repo_objects

    download.answer = str(tmp_path)
    assert model_folder(path) == tmp_path
    assert (download.name, download.options["revision"]) == (NAME, revision)
    files = [
        "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
        "model-00001-of-00002.safetensors", "model.safetensors", "chat_template.jinja",
        "merges.txt", "tokenizer.model", "additional_chat_templates/tools.jinja",
        "adapter_config.json", "special_tokens_map.json",
        "pytorch_model.bin", "modeling.py", "consolidated.safetensors", "model.gguf",
        "original/params.json", "onnx/model.safetensors", "original/tokenizer.model", "README.md",
    ]  # fmt: skip
    patterns = download.options["allow_patterns"]
    assert list(filter_repo_objects(files, allow_patterns=patterns)) == files[:12]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (http(RepositoryNotFoundError), "the hub has no such model, or it is private"),
        (http(GatedRepoError), "the hub gives access only with its owner's permission"),
        (http(RevisionNotFoundError), f"the hub's {NAME} has no revision v1"),
        (http(HfHubHTTPError), r"the hub failed: a long message"),
        (OSError("No space left"), "the hub failed: No space left"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, Exception) else "",
)
def test_what_the_hub_refuses_is_one_sentence(download, error, reason):
    download.answer = error
    with pytest.raises(
        InputError, match=rf"^model\.path={NAME}@v1 is not a folder, and {reason}"
    ) as e:
        model_folder(f"{NAME}@v1")
    assert "\n" not in str(e.value)


def test_the_sentence_says_whether_the_hub_is_out_of_reach_or_switched_off(download, monkeypatch):
    download.answer = LocalEntryNotFoundError("several\nlines")
    for offline, reason in ((True, "HF_HUB_OFFLINE is set"), (False, "the hub cannot be reached")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        with pytest.raises(
            InputError, match=rf"and {reason}, and .*the local cache does not have it\.$"
        ):
            model_folder(NAME)


def test_offline_the_refusal_comes_at_once():
    """Calls the library itself, with HF_HUB_OFFLINE."""
    start = time.perf_counter()
    with pytest.raises(
        InputError, match=r"^model\.path=no-one/nothing is not a folder, and HF_HUB"
    ):
        model_folder("no-one/nothing")
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("path", ["/nowhere", "nowhere", "a/b/c", "a b/c", "../x/y", "a/b@", "./a"])
def test_what_is_neither_is_named_without_asking_anybody(path, download):
    with pytest.raises(InputError, match=r"model\.path=.* is not a folder: .* rl4p/tiny"):
        model_folder(path)
    assert not hasattr(download, "name")


@pytest.mark.parametrize("weights", [True, False])
def test_a_plan_fetches_no_weights(download, tmp_path, weights):
    download.answer = str(tmp_path)
    model_folder(NAME, weights=weights)
    patterns = download.options["allow_patterns"]
    assert ("model*.safetensors" in patterns) is weights
    assert {"config.json", "tokenizer.json", "chat_template.jinja"} < {*patterns}


def test_a_name_lasts_where_others_read_it(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert lasting_name("mine") == str(tmp_path / "mine")
    assert lasting_name("rl4p/tiny") == str(SHIPPED["rl4p/tiny"])
    assert lasting_name(f"{NAME}@v1") == f"{NAME}@v1"
