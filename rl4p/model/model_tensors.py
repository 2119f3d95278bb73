"""The tensors of a checkpoint's files, made from parameters one after another."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES, Tensor
from rl4p.model.lora import merged_kernel
from rl4p.model.tensor_files import NewTensor, transposed
from rl4p.types import Array, Params

PART_BYTES = 2**22  # the most of an embedding that is made at a time


def model_tensors(
    decoder: Decoder, params: Params, dtype_of: Callable[[Tensor, Array], Any]
) -> list[NewTensor]:
    """Returns all tensors of the files; each is made from the parameters when it is written.

    Args:
      decoder: the decoder of the parameters.
      params: parameters on any devices, with stacked layers or with one tree per layer; adapters
        are merged into their kernels.
      dtype_of: a function from a tensor and its parameter to its dtype in the files.
    """
    tensors = []
    for tensor in held_tensors(decoder, params):
        array = leaf(params, tensor.path)
        arrays = array, *adapter_of(params, tensor)
        tensors.append(new_tensor(tensor, arrays, dtype_of(tensor, array), decoder.lora.scale))
    return tensors


def held_tensors(decoder: Decoder, params: Params) -> Iterator[Tensor]:
    """Yields every tensor with its place in these parameters, stacked or one tree per layer."""
    stacked = isinstance(params["layers"], Mapping)
    for tensor in FAMILIES[decoder.config.family].names(decoder.config):
        if stacked or tensor.layer is None:
            yield tensor
        else:
            yield tensor._replace(path=("layers", tensor.layer, *tensor.path[1:]), layer=None)


def new_tensor(
    tensor: Tensor, arrays: tuple[Array, ...], dtype: Any, scale: float = 0.0
) -> NewTensor:
    """Returns a tensor of a parameter, which any adapter beside it in `arrays` is merged into."""
    at, dtype = tuple(map(np.int32, stacked_index(tensor))), jnp.dtype(dtype)
    shape = arrays[0].shape[len(at) :][:: -1 if tensor.transposed else 1]

    def whole() -> Iterator[np.ndarray]:
        made = np.asarray(one_tensor(arrays, at, scale=scale, dtype=dtype))
        yield transposed(made) if tensor.transposed else made

    def rows() -> Iterator[np.ndarray]:
        """Yields some rows at a time, since an embedding may be a third of a model."""
        most = max(1, PART_BYTES // (shape[1] * dtype.itemsize))
        for first in range(0, shape[0], most):
            count = min(most, shape[0] - first)
            yield np.asarray(some_rows(arrays[0], np.int32(first), count=count, dtype=dtype))

    divided = len(shape) == 2 and not at and not tensor.transposed and len(arrays) == 1
    return NewTensor(name=tensor.name, shape=shape, dtype=dtype, parts=rows if divided else whole)


@partial(jax.jit, static_argnames=("scale", "dtype"))
def one_tensor(
    arrays: tuple[Array, ...], at: tuple[Array, ...], *, scale: float, dtype: Any
) -> Array:
    """Returns one tensor of a stacked parameter, with any adapter merged."""
    tensor, *adapter = (jnp.asarray(array[at]) for array in arrays)
    if adapter:
        tensor = merged_kernel(tensor, adapter[0], adapter[1], scale)
    return tensor.astype(dtype)


@partial(jax.jit, static_argnames=("count", "dtype"))
def some_rows(array: Array, first: Array, *, count: int, dtype: Any) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, first, count).astype(dtype)


def adapter_of(params: Params, tensor: Tensor) -> tuple[Array, ...]:
    """Returns a kernel's LoRA matrices A and B; empty if the tensor has no adapter."""
    beside = leaf(params, tensor.path[:-1])
    adapted = tensor.path[-1] == "kernel" and "lora_a" in beside
    return (beside["lora_a"], beside["lora_b"]) if adapted else ()


def stacked_index(tensor: Tensor) -> tuple[int, ...]:
    """Returns a tensor's index along the leading axes (layer, expert) of its parameter."""
    return tuple(i for i in (tensor.layer, tensor.expert) if i is not None)


def leaf(tree: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
