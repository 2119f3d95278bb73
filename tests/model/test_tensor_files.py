import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl4p.base.errors import InputError
from rl4p.model import tensor_files
from rl4p.model.tensor_files import (
    INDEX,
    SINGLE,
    NewTensor,
    check_file,
    copy,
    read_header,
    stored_tensors,
    write_tensors,
)

TENSORS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.arange(5, dtype=np.float16),
    "c": np.zeros((0, 2), np.float32),
}


class InTwoParts(NewTensor):
    def __init__(self, name, array, calls):
        self.name, self.shape, self.dtype = name, array.shape, array.dtype
        self.array, self.calls = array, calls

    def parts(self):
        self.calls.append(self.name)
        yield from np.split(self.array, [1])


def new(tensors=TENSORS, calls=None):
    return [InTwoParts(name, x, [] if calls is None else calls) for name, x in tensors.items()]


@pytest.fixture
def folder(tmp_path):
    write_tensors(tmp_path, new(), 10**9)
    return tmp_path


def divided(folder):
    write_tensors(folder, new(), 48)
    (folder / SINGLE).unlink()
    return folder / INDEX


def test_what_is_written_is_what_the_library_reads(folder):
    assert [path.name for path in folder.iterdir()] == [SINGLE]
    read = load_file(folder / SINGLE)
    assert read.keys() == TENSORS.keys()
    for name, x in TENSORS.items():
        np.testing.assert_array_equal(read[name], x, strict=True)


def test_what_the_library_writes_is_read(tmp_path):
    save_file(TENSORS, tmp_path / SINGLE)
    for name, stored in stored_tensors(tmp_path).items():
        pieces = [piece for _, piece in stored.pieces(slice(0, len(TENSORS[name])))]
        read = np.concatenate([np.zeros_like(TENSORS[name][:0]), *pieces])
        np.testing.assert_array_equal(read, TENSORS[name], strict=True)


def test_arrays_are_made_one_by_one_as_they_are_written(tmp_path):
    calls = []
    tensors = new(calls=calls)
    assert not calls
    write_tensors(tmp_path, tensors, 10**9)
    assert calls == ["a", "b", "c"]


def test_threads_write_the_same_files(tmp_path):
    tensors = {f"{name}{i}": x + i for i in range(20) for name, x in TENSORS.items()}
    written = []
    for threads in (1, 4):
        folder = tmp_path / str(threads)
        folder.mkdir()
        files = write_tensors(folder, new(tensors), 200, synced=False, threads=threads)
        written.append((files.checksums, {x.name: x.read_bytes() for x in folder.iterdir()}))
    assert written[0] == written[1]
    assert len(written[0][0]) > 1


def test_a_tensor_that_cannot_be_made_ends_the_write(tmp_path):
    class Broken(InTwoParts):
        def parts(self):
            raise OSError("no space")

    tensors = [*new(), Broken("d", TENSORS["a"], []), *new({"e": TENSORS["a"]})]
    with pytest.raises(OSError, match="no space"):
        write_tensors(tmp_path, tensors, 10**9, threads=4)


def test_a_file_is_closed_before_it_is_too_large(folder):
    index = json.loads(divided(folder).read_text())
    assert index == {
        "metadata": {"total_parameters": 17, "total_size": 58},
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
            "c": "model-00002-of-00002.safetensors",
        },
    }
    assert {name: x.shape for name, x in stored_tensors(folder).items()} == {
        name: x.shape for name, x in TENSORS.items()
    }


def test_a_missing_shard_is_named(folder):
    divided(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"names files .* not exist: model-00002-of-00002\.safet"):
        stored_tensors(folder)


def test_an_index_that_is_not_true_is_refused_with_all_tensors(folder):
    index = divided(folder)
    content = json.loads(index.read_text())
    content["weight_map"]["b"] = "model-00001-of-00002.safetensors"
    content["weight_map"]["d"] = content["weight_map"].pop("c")
    index.write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        stored_tensors(folder)
    for sentence in (
        "b is missing from model-00001-of-00002.safetensors",
        "d is missing from model-00002-of-00002.safetensors",
        "b is in model-00002-of-00002.safetensors, but the index does not list it",
        "c is in model-00002-of-00002.safetensors, but the index does not list it",
    ):
        assert sentence in str(error.value)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"weight_map": {}}', '{"weight_map": 1}'])
def test_a_broken_index_is_named(folder, content):
    divided(folder).write_text(content)
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json"):
        stored_tensors(folder)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/passwd", "", "..", "a.bin", 7])
def test_an_index_cannot_point_out_of_its_folder(folder, file):
    divided(folder).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(InputError, match="not the name of a safetensors file in this folder"):
        stored_tensors(folder)


def huge(content):
    return (2**40).to_bytes(8, "little") + content[8:]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:7],
        lambda content: content[:30],
        lambda content: content[:-1],
        lambda content: content + b"x",
        huge,
        lambda content: content.replace(b'"F32"', b'"F99"'),
        lambda content: content.replace(b"[3,4]", b"[3,5]"),
        lambda content: content.replace(b"[0,48]", b"[4,48]"),
    ],
    ids=[
        "empty", "cut length", "cut header", "cut data", "trailing data", "huge header",
        "unknown dtype", "another shape", "a gap",
    ],
)  # fmt: skip
def test_what_is_not_a_whole_file_is_named(folder, change):
    path = folder / SINGLE
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=r"model\.safetensors is not a complete safetensors file"):
        read_header(path)


def test_a_file_cut_while_it_is_read_is_named(folder):
    stored = stored_tensors(folder)["a"]
    (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[: stored.start + 20])
    with pytest.raises(InputError, match="became shorter while it was read"):
        list(stored.pieces(slice(0, 3)))


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no model\.safetensors and no model\.safetensors\.index"):
        stored_tensors(tmp_path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "a.pth"])
def test_a_pickle_is_refused_unopened(tmp_path, name):
    import pickle

    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError, match=rf"only as pickle \({name}\), .* convert .* safetensors"):
        stored_tensors(tmp_path)


def test_some_rows_are_read_from_where_they_stand(folder):
    stored = stored_tensors(folder)["a"]
    ((first, piece),) = stored.pieces(slice(1, 3))
    assert first == 1
    np.testing.assert_array_equal(piece, TENSORS["a"][1:3])


@pytest.mark.parametrize("bytes_at_a_time", [1, 16, 40])
def test_a_piece_says_which_row_it_begins_with(folder, monkeypatch, bytes_at_a_time):
    monkeypatch.setattr(tensor_files, "PIECE_BYTES", bytes_at_a_time)
    pieces = list(stored_tensors(folder)["a"].pieces(slice(0, 3)))
    rows = max(1, bytes_at_a_time // 16)
    assert [first for first, _ in pieces] == list(range(0, 3, rows))
    np.testing.assert_array_equal(np.concatenate([x for _, x in pieces]), TENSORS["a"])


@pytest.mark.parametrize("name", ["a", "abcdefg"])
def test_data_begin_at_a_multiple_of_eight_bytes(tmp_path, name):
    write_tensors(tmp_path, new({name: TENSORS["a"]}), 10**9)
    assert stored_tensors(tmp_path)[name].start % 8 == 0


@pytest.mark.parametrize(("shard_bytes", "files"), [(58, 1), (57, 2), (1, 3)])
def test_a_file_may_be_just_as_large_as_the_limit(tmp_path, shard_bytes, files):
    write_tensors(tmp_path, new(), shard_bytes)
    assert len(list(tmp_path.glob("*.safetensors"))) == files
    assert stored_tensors(tmp_path).keys() == TENSORS.keys()


def test_a_pickle_beside_safetensors_is_no_matter(folder):
    (folder / "pytorch_model.bin").write_bytes(b"not opened")
    assert stored_tensors(folder).keys() == TENSORS.keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 5), (32, 3), (33, 7), (0, 4)])
def test_a_matrix_is_transposed_a_few_rows_at_a_time(shape, dtype):
    matrix = np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    target = np.empty(matrix.shape[::-1], matrix.dtype)
    copy(matrix, target.T)
    np.testing.assert_array_equal(target, matrix.T, strict=True)


def test_only_a_regular_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"config\.json is not a regular file"):
        check_file(tmp_path / "config.json")
