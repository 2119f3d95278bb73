"""Tests MXFP4 by hand, and a folder with such weights."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from rl4p.base.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_params
from rl4p.model.mxfp4 import dequantized
from rl4p.model.tensor_files import stored_tensors
from tests.golden.cases import decoder_config, make_tensors


def quantized(count, groups, out):
    """Returns random blocks and scales, and the numbers that they stand for, [count, in, out]."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (count, out, groups, 16), np.uint8)
    scales = random.integers(120, 130, (count, out, groups), np.uint8)
    numbers = np.zeros((count, groups * 32, out))
    for place in np.ndindex(blocks.shape):
        n, o, group, byte = place
        code = int(blocks[place])
        for i, four in enumerate((code & 15, code >> 4)):
            exponent, mantissa = (four >> 1) & 3, four & 1
            size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
            size *= 2.0 ** (int(scales[n, o, group]) - 127)
            numbers[n, group * 32 + 2 * byte + i, o] = -size if four & 8 else size
    return {"blocks": blocks, "scales": scales}, numbers


def test_a_byte_is_two_numbers_of_a_shared_scale(tmp_path):
    """Codes 0 to 7 are 0, 1/2, 1, 3/2, 2, 3, 4 and 6, and 8 to 15 the same below 0."""
    stored, numbers = quantized(2, 3, 5)
    other = {"plain": np.ones(3, np.float32), "alone_blocks": stored["blocks"]}
    save_file(other | {f"a_{x}": y for x, y in stored.items()}, tmp_path / "model.safetensors")
    tensors = dequantized(stored_tensors(tmp_path))
    assert sorted(tensors) == ["a", "alone_blocks", "plain"]
    assert (tensors["a"].kind, tensors["a"].shape) == ("BF16", (2, 96, 5))
    assert len(np.unique(np.abs(numbers[0, :32, 0] / numbers[0, :32, 0].max()))) > 4
    for rows in (slice(0, 2), slice(1, 2)):
        pieces = list(tensors["a"].pieces(rows))
        assert [first for first, _ in pieces] == [*range(rows.start, rows.stop)]
        ours = np.concatenate([piece for _, piece in pieces])
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_array_equal(ours.astype(np.float64), numbers[rows])


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_folder_with_such_weights_is_read(tmp_path, dtype):
    """Neighbours in the last axis are a gate and an up projection."""
    config = replace(decoder_config("gpt_oss"), feed_forward_width=32)
    decoder, tensors = Decoder(config=config), make_tensors(config)
    name, (stored, numbers) = "model.layers.1.mlp.experts.gate_up_proj", quantized(6, 1, 64)
    del tensors[name]
    tensors |= {f"{name}_{x}": y for x, y in stored.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    experts = read_params(tmp_path, decoder, dtype)["layers"]["experts"]
    for i, kernel in enumerate(("gate", "up")):
        np.testing.assert_array_equal(np.float64(experts[kernel][1]), numbers[..., i::2])
        assert experts[kernel].dtype == jnp.float32  # the other layers are not quantized
    tensors[f"{name}_scales"] = stored["scales"][:, :5]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="quantized"):
        read_params(tmp_path, decoder, dtype)
