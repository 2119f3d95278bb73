"""The tensors of a checkpoint's files, made from parameters one after another."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from operator import getitem
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey

from rl4p.base.types import Array, Params
from rl4p.model.decoder import Decoder
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.families import FAMILIES, Tensor, TensorPart
from rl4p.model.lora import merged_kernel
from rl4p.model.tensor_files import NewTensor, copy

PART_BYTES = 2**22  # the most of an embedding that is made at a time


def model_tensors(
    decoder: Decoder, params: Params, dtype_of: Callable[[tuple, Array], Any]
) -> list[NewTensor]:
    """Returns all tensors of the files; each is made from the parameters when it is written.

    Args:
      decoder: the decoder of the parameters.
      params: parameters on any devices, with stacked layers or with one tree per layer; adapters
        are merged into their kernels, and a critic is left out.
      dtype_of: a function from the path of a parameter and the parameter to its dtype in the files.
    """
    tensors: dict[str, NewTensor] = {}
    parts: dict[str, list[tuple[TensorPart, ParameterTensor]]] = {}
    stacked = isinstance(params["layers"], Mapping)
    for tensor in held_tensors(decoder.config, stacked=stacked):
        *path, name = tensor.path
        beside = reduce(getitem, path, params)
        adapted = name == "kernel" and "lora_a" in beside
        arrays = [beside[x] for x in (name, *(("lora_a", "lora_b") if adapted else ()))]
        dtype = dtype_of(tuple(map(DictKey, tensor.path)), arrays[0])
        new = ParameterTensor(tensor, arrays, dtype, decoder.lora.scale)
        tensors[tensor.name] = new
        if tensor.part is not None:
            parts.setdefault(tensor.name, []).append((tensor.part, new))
    for name, several in parts.items():
        shape = several[0][0].whole(several[0][1].shape)
        pieces = [(part.index_of(tuple(slice(0, n) for n in x.shape)), x) for part, x in several]
        tensors[name] = AssembledTensor(shape, pieces)
    return list(tensors.values())


def held_tensors(config: DecoderConfig, *, stacked: bool) -> Iterator[Tensor]:
    """Yields every tensor with its path in stacked parameters, or in one tree per layer."""
    for tensor in FAMILIES[config.family].names(config):
        if stacked or tensor.layer is None:
            yield tensor
        else:
            yield tensor._replace(path=("layers", tensor.layer, *tensor.path[1:]), layer=None)


class ParameterTensor(NewTensor):
    """A tensor of a parameter, made on its devices.

    Args:
      arrays: the parameter, and the LoRA matrices A and B to merge into it, if any.
      scale: the factor of the LoRA matrices.
    """

    def __init__(self, tensor: Tensor, arrays: list[Array], dtype: Any, scale: float = 0.0) -> None:
        self.arrays, self.scale, self.transposed = tuple(arrays), scale, tensor.transposed
        self.at = tuple(map(np.int32, stacked_index(tensor)))
        shape = arrays[0].shape[len(self.at) :]
        self.name, self.dtype = tensor.name, jnp.dtype(dtype)
        self.shape = shape[::-1] if tensor.transposed else shape

    def parts(self) -> Iterator[np.ndarray]:
        """Yields the array, but of an embedding (maybe a third of a model) some rows at a time."""
        parameter, *adapter = self.arrays
        if len(self.shape) != 2 or self.at or self.transposed or adapter:
            whole = np.asarray(one_tensor(self.arrays, self.at, scale=self.scale, dtype=self.dtype))
            if self.transposed:  # in less than half the time that XLA takes on a CPU
                matrix, whole = whole, np.empty(self.shape, self.dtype)
                copy(matrix, whole.T)
            yield whole
            return
        most = max(1, PART_BYTES // (self.shape[1] * self.dtype.itemsize))
        for first in range(0, self.shape[0], most):
            count = min(most, self.shape[0] - first)
            rows = some_rows(parameter, np.int32(first), count=count, dtype=self.dtype)
            yield np.asarray(rows)


class AssembledTensor(NewTensor):
    """A tensor of several parameters, with zeros between them.

    Args:
      shape: its shape.
      pieces: the tensors of the parameters, each with its index in this one.
    """

    def __init__(
        self, shape: tuple[int, ...], pieces: list[tuple[tuple[slice, ...], ParameterTensor]]
    ) -> None:
        self.shape, self.pieces = shape, pieces
        self.name, self.dtype = pieces[0][1].name, pieces[0][1].dtype

    def parts(self) -> Iterator[np.ndarray]:
        whole = np.zeros(self.shape, self.dtype)
        for index, piece in self.pieces:
            whole[index] = np.concatenate(list(piece.parts()))
        yield whole


@partial(jax.jit, static_argnames=("scale", "dtype"))
def one_tensor(
    arrays: tuple[Array, ...], at: tuple[Array, ...], *, scale: float, dtype: Any
) -> Array:
    """Returns one tensor of a stacked parameter, with any adapter merged."""
    tensor, *adapter = (array[at] for array in arrays)
    if adapter:
        tensor = merged_kernel(tensor, adapter[0], adapter[1], scale)
    return tensor.astype(dtype)


@partial(jax.jit, static_argnames=("count", "dtype"))
def some_rows(array: Array, first: Array, *, count: int, dtype: Any) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, first, count).astype(dtype)


def stacked_index(tensor: Tensor) -> tuple[int, ...]:
    """Returns a tensor's index along the leading axes (layer, expert) of its parameter."""
    return tuple(i for i in (tensor.layer, tensor.expert) if i is not None)
