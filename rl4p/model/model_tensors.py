"""The tensors of a checkpoint's files, made from parameters one after another."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params
from rl4p.model.decoder import Decoder
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.families import FAMILIES, Tensor, TensorPart
from rl4p.model.families.wrappers import name_in_files, split
from rl4p.model.lora import merged_kernel
from rl4p.model.tensor_files import (
    DTYPES,
    NewTensor,
    StoredTensor,
    copy,
    listed,
    stored_tensors,
)

log = logging.getLogger(__name__)

PART_BYTES = 2**20  # the most that is made at a time of what need not be made as a whole
DISPATCH = threading.Lock()  # all devices run the programs of several threads in one order


def model_tensors(
    decoder: Decoder, params: Params, dtype_of: Callable[[tuple, Array], Any]
) -> list[NewTensor]:
    """Returns all tensors of the files; each is made from the parameters when it is written.

    Args:
      params: parameters on any devices, with stacked layers or with one tree per layer; adapters
        are merged into their kernels, and a critic is left out.
      dtype_of: a function from the path of a parameter and the parameter to its dtype in the files.
    """
    tensors: dict[str, NewTensor] = {}
    parts: dict[str, list[tuple[TensorPart, ParameterTensor]]] = {}
    stacked = isinstance(params["layers"], Mapping)
    for tensor in held_tensors(decoder.config, stacked=stacked):
        tensor = tensor._replace(name=name_in_files(decoder.config.wrapper, tensor.name))
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
    family = FAMILIES[config.family]
    if stacked:
        yield from family.tensors(config)
        return
    for tensor in family.names(config):
        if tensor.layer is None:
            yield tensor
        else:
            yield tensor._replace(path=("layers", tensor.layer, *tensor.path[1:]), layer=None)


class CopiedTensor(NewTensor):
    """A tensor of a file, copied as it is."""

    def __init__(self, name: str, stored: StoredTensor) -> None:
        self.name, self.shape, self.dtype = name, stored.shape, DTYPES[stored.kind]
        self.stored = replace(stored, shape=(int(np.prod(stored.shape)),))

    def parts(self) -> Iterator[np.ndarray]:
        for _, piece in self.stored.pieces(slice(0, *self.stored.shape)):
            yield piece


def other_tensors(folder: Path, config: DecoderConfig) -> list[NewTensor]:
    """Returns the tensors in a wrapper's folder that are not of its text model."""
    _, others = split(config.wrapper, stored_tensors(folder))
    if odd := [name for name, tensor in others.items() if tensor.kind not in DTYPES]:
        log.warning("The tensors %s are left out, which have other dtypes.", listed(odd))
    return [CopiedTensor(name, x) for name, x in others.items() if x.kind in DTYPES]


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
        self.shape = tensor.of_file(shape)

    def parts(self) -> Iterator[np.ndarray]:
        """Yields some rows at a time.

        Memory of the host is read in place. Otherwise the devices make the array as a whole, but of
        an embedding (maybe a third of a model) the rows.
        """
        parameter, *adapter = self.arrays
        here = None if adapter or parameter.dtype != self.dtype else host_view(parameter)
        row_bytes = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        most = max(1, PART_BYTES // max(1, row_bytes))
        count = self.shape[0] if self.shape else 1  # a number has no axis
        spans = [(n, min(n + most, count)) for n in range(0, count, most)]
        if here is None and len(self.shape) == 2 and not (self.at or self.transposed or adapter):
            for first, end in spans:
                with DISPATCH:
                    rows = some_rows(
                        parameter, np.int32(first), count=end - first, dtype=self.dtype
                    )
                yield np.asarray(rows)
            return
        if here is None:
            with DISPATCH:
                made = one_tensor(self.arrays, self.at, scale=self.scale, dtype=self.dtype)
            whole = np.atleast_1d(made)
        else:
            whole = np.atleast_1d(here[self.at])
        for first, end in spans:
            if not self.transposed:
                yield whole[first:end]
                continue
            rows = np.empty((end - first, *self.shape[1:]), self.dtype)
            part = whole[first:end] if len(self.shape) > 2 else whole[:, first:end]
            copy(part, rows.swapaxes(-1, -2))  # in less than half the time that XLA takes on a CPU
            yield rows


class AssembledTensor(NewTensor):
    """A tensor of several parameters, with zeros between them.

    Args:
      shape: its shape.
      pieces: the tensors of the parameters, each with its index in this one.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        pieces: list[tuple[tuple[slice | np.ndarray, ...], ParameterTensor]],
    ) -> None:
        self.shape, self.pieces = shape, pieces
        self.name, self.dtype = pieces[0][1].name, pieces[0][1].dtype

    def parts(self) -> Iterator[np.ndarray]:
        whole = np.zeros(self.shape, self.dtype)
        for index, piece in self.pieces:
            whole[index] = np.concatenate(list(piece.parts()))
        yield whole


def host_view(array: Array) -> np.ndarray | None:
    """Returns an array without a copy; None if it is on other devices than one CPU."""
    if isinstance(array, np.ndarray):
        return array
    device, *others = array.sharding.device_set
    return None if others or device.platform != "cpu" else np.asarray(array)


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


ROWS = 4096  # of an embedding to compare at a time
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

# The names of tensors that quantized weights have beside them, and the dtypes of such weights.
SCALES = (
    *("scale", "scales", "weight_scale", "weight_scale_inv", "input_scale", "k_scale", "v_scale"),
    *("scale_inv", "weight_scale_2", "weight_packed", "weight_shape", "weight_zero_point"),
    *("qweight", "qzeros", "g_idx", "absmax", "quant_map", "nested_absmax", "SCB", "biases"),
)

QUANTIZED = ("I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2")

# The parts of names that the wrappers of torch add: compiled, parallel, checkpointed.
WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def check_fit(
    folder: Path,
    stored: dict[str, StoredTensor],
    tensors: Iterable[Tensor],
    shapes: Params,
    *,
    tied: bool,
    complete: bool = True,
) -> None:
    """Checks the tensors of the files against the decoder's parameters before reading them.

    Args:
      tensors: the tensors of the decoder, with their paths in `shapes`.
      shapes: the parameters, or their shapes.
      tied: whether the embedding is the token head, so that files may repeat it as the head.
      complete: whether no tensor may be missing.

    Raises:
      InputError: the weights are quantized, or have the names of a wrapped model; or tensors are
        missing, extra, of another shape or dtype (names the first of them); or a token head
        differs from the embedding that it should equal.
    """
    missing, problems = [], []
    known = {HEAD} if tied else set()
    for tensor in tensors:
        if tensor.part is not None and tensor.name in known:
            continue  # another part was checked
        known.add(tensor.name)
        in_file = stored.get(tensor.name)
        if in_file is None:
            missing += [tensor.name]
            continue
        shape = reduce(getitem, tensor.path, shapes).shape[len(stacked_index(tensor)) :]
        shape = tensor.of_file(shape)
        shape = shape if tensor.part is None else tensor.part.whole(shape)
        if in_file.shape != shape:
            problems.append(f"{tensor.name} must have shape {shape}, not {in_file.shape}")
        if in_file.kind not in DTYPES:
            problems.append(f"{tensor.name} is {in_file.kind}, not one of {', '.join(DTYPES)}")
    extra = [
        name
        for name in stored
        if name not in known and not name.endswith("rotary_emb.inv_freq")  # follows from config
    ]
    if quantized := quantization(stored, extra):
        raise InputError(
            f"The weights in {folder} are quantized ({quantized}), which is not supported: use the "
            "folder of the model before it was quantized."
        )
    if extra and (wrapped := wrapped_name(extra, set(missing))):
        raise InputError(
            f"The weights in {folder} have other names than the model: {wrapped[0]} in place of "
            f"{wrapped[1]}; save the whole model without a wrapper (torch.compile, DDP, PEFT)."
        )
    problems = (
        [f"{name} is missing" for name in missing if complete]
        + problems
        + [f"{name} is not part of this model" for name in extra]
    )
    if problems:
        raise InputError(f"The weights in {folder} do not match the model: {listed(problems)}.")
    if tied and HEAD in stored and (not complete or EMBEDDING in stored):
        check_tied(folder, stored)


def quantization(stored: dict[str, StoredTensor], extra: Iterable[str]) -> str | None:
    """Returns a tensor that shows that weights are quantized, in words, or None."""
    for name in extra:
        if name.rpartition(".")[2] in SCALES:
            return name
    kinds = ((name, tensor.kind) for name, tensor in stored.items())
    return next((f"{name} is {kind}" for name, kind in kinds if kind in QUANTIZED), None)


def wrapped_name(extra: Iterable[str], missing: set[str]) -> tuple[str, str] | None:
    """Returns a tensor whose name has other parts around the name of a missing one, and the latter.

    Wrappers put parts before or into names; the decoder without its head lacks the first part.
    """
    for name in extra:
        parts = [part for part in name.split(".") if part not in WRAPPERS]
        parts = [part for part in parts if part != "base_layer"]  # of PEFT
        tails = (".".join(parts[first:]) for first in range(len(parts)))
        for tail in (f"model.{'.'.join(parts)}", *tails):
            if tail in missing:
                return name, tail
    return None


def check_tied(folder: Path, stored: dict[str, StoredTensor]) -> None:
    """Checks that the token head in the files is the embedding, which takes its place."""
    embedding, head = stored.get(EMBEDDING), stored[HEAD]
    if embedding is not None and embedding.shape == head.shape and head.kind in DTYPES:
        for first in range(0, head.shape[0], ROWS):
            rows = slice(first, min(first + ROWS, head.shape[0]))
            pair = (
                np.concatenate([piece.astype(np.float32) for _, piece in tensor.pieces(rows)])
                for tensor in (embedding, head)
            )
            if not np.array_equal(*pair, equal_nan=True):
                break
        else:
            return
    raise InputError(
        f"{folder} has a {HEAD} that differs from {EMBEDDING}, although tie_word_embeddings makes "
        "them one: set it to false in config.json to use the head, or delete the head."
    )
