import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model import model_tensors as module
from rl4p.model.model_tensors import model_tensors


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
