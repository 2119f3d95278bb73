"""Tests of addresses in object stores, in a store in memory."""

import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rl4p.base.errors import InputError, RunError
from rl4p.base.storage import ObjectStore, is_address, local_copy


def test_a_path_is_no_address():
    assert local_copy("some/folder") == Path("some/folder")
    for path in ("/a", "a/b", "~/a", "owner/name@v1", "C:/a", ""):
        assert not is_address(path)
    assert is_address("s3://bucket/name")


def test_a_file_is_copied_once_and_again_when_it_changes(url, monkeypatch):
    store = ObjectStore(f"{url}/rows.jsonl")
    store.write("", b"1")
    first = local_copy(store.url)
    assert (first.name, first.read_bytes()) == ("rows.jsonl", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", None)
        assert local_copy(store.url) == first
    store.write("", b"2")
    assert local_copy(store.url).read_bytes() == b"2"
    assert first.read_bytes() == b"1"  # for those who read it


def test_of_a_folder_what_is_needed_is_copied(url):
    for name in ("config.json", "model.safetensors", "more/a.jinja"):
        ObjectStore(url).write(name, name.encode())
    few = local_copy(f"{url}/", ["*.json", "more/*"])
    assert {path.name for path in few.rglob("*") if path.is_file()} == {"config.json", "a.jinja"}
    assert local_copy(f"{url}/") == few
    assert (few / "model.safetensors").read_text() == "model.safetensors"
    assert not list(few.rglob(".*"))


def test_a_copy_that_broke_off_is_completed(url, monkeypatch):
    for name in ("a", "b"):
        ObjectStore(url).write(name, name.encode())
    get_file = MemoryFileSystem.get_file

    def broken(self, address, path):
        Path(path).write_text("half")
        if address.endswith("/b"):
            raise OSError("the connection was closed")
        get_file(self, address, path)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", broken)
        with pytest.raises(RunError, match="cannot be read: OSError: the connection was closed"):
            local_copy(url)
    assert {path.name: path.read_text() for path in local_copy(url).iterdir()} == {
        "a": "a",
        "b": "b",
    }


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("https://host/name", r"is not in an object store that rl4p reads \(s3://, gs://, memory"),
        ("memory://bucket/nothing", "memory://bucket/nothing does not exist"),
        ("gs://bucket/name", r"needs a library: pip install 'rl4p\[gs\]'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(address, sentence, monkeypatch, url):
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    with pytest.raises(InputError, match=sentence):
        local_copy(address)


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "a//b", "./a"])
def test_an_object_never_becomes_a_file_outside_of_its_folder(url, tmp_path, name):
    with pytest.raises(InputError, match="which is no name of a file"):
        ObjectStore(url).download([name], tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    assert not (tmp_path / "outside").exists()


def test_absent_objects_are_left_out_and_deleted_ones_are_absent(url, tmp_path):
    store = ObjectStore(url)
    store.write("a", b"a")
    store.delete(["a", "never"])
    store.download(["a"], tmp_path / "folder")
    assert store.read("a") is None
    assert store.objects() == {}
    assert not list((tmp_path / "folder").iterdir())
