"""Weights of 4 bits: NF4, in which a base of adapters is held, and MXFP4, which files may have.

NF4 is from QLoRA (2305.14314). MXFP4 is that of the Open Compute Project; it is only read. So are
weights of 8 bits with a scale for each block, as DeepSeek-V3 has them (2412.19437).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.model.tensor_files import StoredTensor

BLOCK = 64  # numbers that share a scale

# The 16 numbers of NF4: quantiles of the normal distribution, from -1 to 1 and with 0 among them.
NF4_VALUES = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)

BETWEEN = (NF4_VALUES[1:] + NF4_VALUES[:-1]) / 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NF4Kernel:
    """A kernel [..., D, F] in 4 bits a number, with one scale for each 64 inputs of an output.

        W[d, f] = NF4_VALUES[code[d, f]] * scales[d // 64, f]

    Attributes:
      codes: uint8 [..., D / 2, F]; the lower four bits are for even d.
      scales: float32 [..., D / 64, F], the largest absolute values.
    """

    codes: Any  # Any, since a tree of shardings or shapes has the same form
    scales: Any

    @property
    def shape(self) -> tuple[int, ...]:
        *leading, half, outputs = self.codes.shape
        return (*leading, 2 * half, outputs)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype in which a file holds its numbers."""
        return jnp.dtype("bfloat16")

    def __getitem__(self, at: Any) -> "NF4Kernel":
        """Returns a part along the leading axes."""
        return NF4Kernel(self.codes[at], self.scales[at])

    def astype(self, dtype: Any) -> Array:
        """Returns the numbers: the products are rounded once, from float32."""
        codes = jnp.stack([self.codes & 15, self.codes >> 4], axis=-2)
        numbers = jnp.asarray(NF4_VALUES)[codes.reshape(self.shape)]
        blocks = numbers.reshape(*self.scales.shape[:-1], BLOCK, self.shape[-1])
        scaled = blocks * jnp.broadcast_to(self.scales[..., None, :], blocks.shape)
        return scaled.reshape(self.shape).astype(dtype)


def quantize_nf4(kernel: np.ndarray) -> NF4Kernel:
    """Returns the kernel with each number rounded to the nearest of its block."""
    *leading, D, F = kernel.shape
    blocks = np.asarray(kernel, np.float32).reshape(*leading, D // BLOCK, BLOCK, F)
    scales = np.abs(blocks).max(axis=-2)
    relative = blocks / np.where(scales > 0, scales, 1)[..., None, :]
    codes = np.searchsorted(BETWEEN, relative).astype(np.uint8).reshape(*leading, D // 2, 2, F)
    return NF4Kernel(codes[..., 0, :] | codes[..., 1, :] << 4, scales)


def quantized_shapes(shapes: Params) -> Params:
    """Returns the shapes of parameters with projections in 4 bits and the rest in bfloat16."""

    def of(path: tuple, x: Any) -> Any:
        if path[0].key != "layers" or path[-1].key != "kernel":  # not a projection
            return x.update(dtype="bfloat16")
        *leading, D, F = x.shape
        if D % BLOCK:
            raise InputError(
                f"model.param_dtype=nf4 needs projections with a multiple of {BLOCK} inputs, but "
                f"{path[-2].key} has {D}: choose bfloat16."
            )
        return NF4Kernel(
            x.update(shape=(*leading, D // 2, F), dtype="uint8"),
            x.update(shape=(*leading, D // BLOCK, F)),
        )

    return jax.tree.map_with_path(of, shapes)


MXFP4 = "mxfp4"
BLOCKS, SCALES = "_blocks", "_scales"
POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_VALUES = np.array([*POSITIVE, *(-x for x in POSITIVE)], np.float32)
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
            pairs = np.stack([MXFP4_VALUES[codes & 15], MXFP4_VALUES[codes >> 4]], axis=-1)
            numbers = np.ldexp(
                pairs.reshape(*scales.shape, 32), scales.astype(np.int32)[..., None] - BIAS
            )
            yield row, numbers.reshape(1, len(scales), -1).swapaxes(1, 2).astype(jnp.bfloat16)


def dequantize_mxfp4(stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
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


FP8, SCALE_INVERSE = "F8_E4M3", "_scale_inv"
# The keys of quantization_config beside its block, with the values that files may have.
FP8_KEYS: dict[str, tuple[Any, ...]] = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3",),
    "activation_scheme": ("dynamic",),
    "scale_fmt": ("float",),
    "expert_dtype": ("fp8",),
}
FP8_LISTS = ("modules_to_not_convert", "ignored_layers")  # which the dtypes of tensors tell too


def fp8_block(section: Any) -> tuple[int, int] | None:
    """Returns the rows and columns that share a scale; None if a section is not of such weights.

    Args:
      section: the quantization_config of a model.
    """
    if not isinstance(section, Mapping) or section.get("quant_method") != "fp8":
        return None
    known = {"weight_block_size", *FP8_KEYS, *FP8_LISTS}
    if section.keys() - known or any(
        section.get(key) not in (None, *values) for key, values in FP8_KEYS.items()
    ):
        return None
    match section.get("weight_block_size"):
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    return None


@dataclass(frozen=True, kw_only=True)
class Fp8Tensor(StoredTensor):
    """A matrix of 8 bits a number (E4M3), which is read as float32.

        W[i, j] = weight[i, j] * weight_scale_inv[i // rows, j // columns]

    Attributes:
      weight, scales: the tensors in the files.
      block: rows and columns.
    """

    weight: StoredTensor
    scales: StoredTensor
    block: tuple[int, int]

    def pieces(self, rows: slice) -> Iterator[tuple[int, np.ndarray]]:
        parts = [part for _, part in self.scales.pieces(slice(0, self.scales.shape[0]))]
        scales = np.concatenate(parts).astype(np.float32)
        of_columns = np.arange(self.shape[1]) // self.block[1]
        for first, piece in replace(self.weight, kind="U8").pieces(rows):
            of_rows = np.arange(first, first + len(piece)) // self.block[0]
            numbers = piece.view(jnp.float8_e4m3fn).astype(np.float32)
            yield first, numbers * scales[of_rows][:, of_columns]


def dequantize_fp8(
    stored: dict[str, StoredTensor], block: tuple[int, int]
) -> dict[str, StoredTensor]:
    """Returns the tensors with each matrix of 8 bits and its scales in place of one of bfloat16.

    A pair whose shapes do not fit is left as it is.
    """
    result = dict(stored)
    for name, weight in stored.items():
        scales = stored.get(name + SCALE_INVERSE)
        if scales is None or weight.kind != FP8 or scales.kind not in ("F32", "BF16"):
            continue
        blocks = tuple(-(-n // size) for n, size in zip(weight.shape, block, strict=False))
        if len(weight.shape) != 2 or scales.shape != blocks:
            continue
        del result[name + SCALE_INVERSE]
        result[name] = Fp8Tensor(
            file=weight.file,
            kind="BF16",
            shape=weight.shape,
            start=weight.start,
            bytes=2 * weight.bytes,
            weight=weight,
            scales=scales,
            block=block,
        )
    return result
