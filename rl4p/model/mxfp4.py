"""Tensors that are stored in MXFP4, which are read as bfloat16.

A number has 4 bits: a sign, two bits of exponent and one of mantissa. 32 numbers share a scale of
8 bits, a power of two (the Microscaling Formats specification of the Open Compute Project, 1.0).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from rl4p.model.tensor_files import StoredTensor

METHOD = "mxfp4"
BLOCKS, SCALES = "_blocks", "_scales"
POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.array([*POSITIVE, *(-x for x in POSITIVE)], np.float32)
BIAS = 127  # of the exponent in a scale


@dataclass(frozen=True, kw_only=True)
class Mxfp4Tensor(StoredTensor):
    """A tensor [N, I, O] that is stored as blocks [N, O, I/32, 16] and scales [N, O, I/32].

    Each byte of a block has two numbers, the first in its lower bits.
    """

    blocks: StoredTensor
    scales: StoredTensor

    def pieces(self, rows: slice) -> Iterator[tuple[int, np.ndarray]]:
        """Yields each of the N matrices, with its index."""
        for row in range(rows.start, rows.stop):
            one = slice(row, row + 1)
            codes, scales = (
                np.concatenate([piece for _, piece in stored.pieces(one)])[0]
                for stored in (self.blocks, self.scales)
            )
            pairs = np.stack([VALUES[codes & 15], VALUES[codes >> 4]], axis=-1)
            numbers = np.ldexp(
                pairs.reshape(*scales.shape, 32), scales.astype(np.int32)[..., None] - BIAS
            )
            yield row, numbers.reshape(1, len(scales), -1).swapaxes(1, 2).astype(jnp.bfloat16)


def dequantized(stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns the tensors with each pair of blocks and scales in place of one of bfloat16.

    A pair whose shapes do not fit is left as it is.
    """
    result = dict(stored)
    for name, blocks in stored.items():
        base = name.removesuffix(BLOCKS)
        scales = stored.get(base + SCALES)
        if base == name or scales is None or (blocks.kind, scales.kind) != ("U8", "U8"):
            continue
        if len(blocks.shape) != 4 or blocks.shape != (*scales.shape, 16):
            continue
        count, out, groups, _ = blocks.shape
        del result[name], result[base + SCALES]
        result[base] = Mxfp4Tensor(
            file=blocks.file,
            kind="BF16",
            shape=(count, groups * 32, out),
            start=blocks.start,
            bytes=count * groups * 32 * out * 2,
            blocks=blocks,
            scales=scales,
        )
    return result
