"""Tests the matrices of adapters by hand, and tensors that they change when they are read."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from rl4p.model.adapter_matrices import ChangedTensor, LowRank
from rl4p.model.tensor_files import read_header

NUMBERS = np.arange(8, dtype=np.float32)


@pytest.fixture
def stored(tmp_path):
    tensors = {
        "w": np.ones((4, 3), np.float32),
        "a": np.float32([[1, 2, 3], [0, 1, 0]]),
        "b": np.float32([[1, 0], [0, 1], [2, 0], [0, 0]]),
        "bias": np.float32([1, 2, 3, 4]),
        "narrow": np.ones((2, 9), np.float32),
    }
    tensors["a_t"], tensors["b_t"] = tensors["a"].T.copy(), tensors["b"].T.copy()
    save_file(tensors, tmp_path / "x.safetensors")
    return read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_by_hand(stored, transposed):
    end = "_t" if transposed else ""
    matrices = LowRank(a=stored[f"a{end}"], b=stored[f"b{end}"], transposed=transposed)
    assert matrices.fits
    assert (matrices.rank, matrices.shape) == (2, (4, 3))
    whole = [[0.5, 1, 1.5], [0, 0.5, 0], [1, 2, 3], [0, 0, 0]]
    np.testing.assert_array_equal(matrices.product(slice(0, 4), scale=0.5), whole)
    np.testing.assert_array_equal(matrices.product(slice(1, 3), scale=0.5), whole[1:3])
    assert str(matrices) == "A [2, 3] and B [4, 2]"


def test_a_bias_is_scaled_too(stored):
    matrices = LowRank(a=stored["a"], b=stored["b"], bias=stored["bias"])
    np.testing.assert_array_equal(matrices.bias_rows(slice(1, 3), scale=0.5), [1, 1.5])


@pytest.mark.parametrize("parts", [("a", "narrow"), ("bias", "b"), ("a", "b", "a")])
def test_matrices_that_cannot_be_multiplied_do_not_fit(stored, parts):
    assert not LowRank(**dict(zip(("a", "b", "bias"), map(stored.get, parts), strict=False))).fits


@pytest.mark.parametrize("rows", [slice(0, 4), slice(1, 3)])
def test_a_changed_tensor_is_the_sum(stored, monkeypatch, rows):
    monkeypatch.setattr("rl4p.model.tensor_files.PIECE_BYTES", 12)  # a row at a time
    matrices = LowRank(a=stored["a"], b=stored["b"])
    changed = ChangedTensor.of(stored["w"], lambda rows: matrices.product(rows, scale=1))
    pieces = list(changed.pieces(rows))
    assert [first for first, _ in pieces] == list(range(rows.start, rows.stop))
    product = np.float32([[1, 2, 3], [0, 1, 0], [2, 4, 6], [0, 0, 0]])
    np.testing.assert_array_equal(np.concatenate([x for _, x in pieces]), 1 + product[rows])
    assert (changed.shape, changed.kind) == ((4, 3), "F32")
