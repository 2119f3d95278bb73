"""Kernels that are held in 4 bits: the base of adapters in QLoRA (2305.14314)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params

BLOCK = 64  # numbers that share a scale

# The 16 numbers of NF4: quantiles of the normal distribution, from -1 to 1 and with 0 among them.
VALUES = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
BETWEEN = (VALUES[1:] + VALUES[:-1]) / 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NF4Kernel:
    """A kernel [..., D, F] in 4 bits a number, with one scale for each 64 inputs of an output.

        W[d, f] = VALUES[code[d, f]] * scales[d // 64, f]

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
        numbers = jnp.asarray(VALUES)[codes.reshape(self.shape)]
        blocks = numbers.reshape(*self.scales.shape[:-1], BLOCK, self.shape[-1])
        scaled = blocks * jnp.broadcast_to(self.scales[..., None, :], blocks.shape)
        return scaled.reshape(self.shape).astype(dtype)


def quantized(kernel: np.ndarray) -> NF4Kernel:
    """Returns the kernel with each number rounded to the nearest of its block."""
    *leading, D, F = kernel.shape
    blocks = np.asarray(kernel, np.float32).reshape(*leading, D // BLOCK, BLOCK, F)
    scales = np.abs(blocks).max(axis=-2)
    relative = blocks / np.where(scales > 0, scales, 1)[..., None, :]
    codes = np.searchsorted(BETWEEN, relative).astype(np.uint8).reshape(*leading, D // 2, 2, F)
    return NF4Kernel(codes[..., 0, :] | codes[..., 1, :] << 4, scales)


def quantized_shapes(shapes: Params) -> Params:
    """Returns the shapes of parameters whose projections are held in 4 bits, the rest in bfloat16.

    Raises:
      InputError: a projection has a number of inputs that is no multiple of 64.
    """

    def of(path: tuple, x: Any) -> Any:
        if not is_projection(path):
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


def is_projection(path: tuple) -> bool:
    """Returns whether a parameter is the kernel of a projection in a layer."""
    return path[0].key == "layers" and path[-1].key == "kernel"
