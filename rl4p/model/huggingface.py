"""Readers and writers of Hugging Face folders: config.json, safetensors and adapters."""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jax.tree_util import DictKey

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Params
from rl4p.distributed import partition
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.partition import held_dtype
from rl4p.distributed.placement import param_shardings
from rl4p.model.adapter import Adapter
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.families import FAMILIES, Tensor, TensorPart, family_of
from rl4p.model.families.harmless import check_keys
from rl4p.model.families.keys import Config, Keys, read_labels, write_labels
from rl4p.model.families.wrappers import name_in_transformers, split, text_config, wrapped
from rl4p.model.folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    GENERATION,
    check_files,
    copy_readers,
    refuse_adapter,
)
from rl4p.model.model_tensors import (
    AssembledTensor,
    ParameterTensor,
    check_fit,
    model_tensors,
    other_tensors,
    stacked_index,
)
from rl4p.model.policy import Policy
from rl4p.model.quantization import (
    BLOCK,
    MXFP4,
    NF4Kernel,
    dequantize_fp8,
    dequantize_mxfp4,
    fp8_block,
    quantize_nf4,
    quantized_shapes,
)
from rl4p.model.tensor_files import (
    DTYPES,
    THREADS,
    NewTensor,
    StoredTensor,
    copy,
    listed,
    read_json,
    stored_tensors,
    sync,
    write_file,
    write_tensors,
)
from rl4p.model.tokenizer import save_tokenizer

log = logging.getLogger(__name__)

SHARD_BYTES = 5 * 10**9
NO_KEYS: Mapping[str, Mapping[str, Any]] = {}
SPAN_BYTES = 2**24  # of a tensor that a thread reads at a time
ALIGNMENT = 64  # bytes; the CPU backend uses aligned memory in place, and copies any other


def read_config(folder: Path) -> DecoderConfig:
    """Returns the decoder configuration that config.json describes.

    Raises:
      InputError: the decoder does not support it, or the folder is not one model (`check_files`).
    """
    refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        raise InputError(f"model.path={folder} has no config.json.")
    check_files(folder)
    whole, file = Config(read_json(folder / "config.json")), str(folder / "config.json")
    config, where = text_config(whole, file)
    family = family_of(config, where)
    shape = family.read_config(Keys(config, where))
    check_keys(config, where, family.quantization, blocks=config is whole)
    labels = read_labels(whole, file)
    if config is whole:
        return replace(shape, labels=labels)
    check_keys(whole, file)
    if labels:
        raise InputError(
            f"{file} is of a classifier of several modalities, which is not supported."
        )
    return replace(shape, wrapper=whole["model_type"])


def read_params(
    folder: Path,
    decoder: Decoder,
    dtype: str | None,
    mesh: Mesh | None = None,
    adapter: Adapter | None = None,
) -> Params:
    """Reads the parameters of a folder's safetensors onto devices, stacked over layers.

    The host holds one parameter at a time, and only the shards of this process's devices. On the
    CPU the parameter is not copied again.

    Args:
      folder: a folder with model.safetensors, or with an index and the files it names.
      dtype: the dtype of the parameters; None keeps the dtype in the files, or takes float32 for a
        stacked parameter whose layers differ. `nf4` holds projections in 4 bits, and the rest in
        bfloat16.
      mesh: the mesh that shards them; None for the first device alone.
      adapter: an adapter of them, which is merged into them.

    Raises:
      InputError: files are missing or broken, or their tensors are not the model's (`check_fit`).
    """
    family = FAMILIES[decoder.config.family]
    stored, others = split(decoder.config.wrapper, stored_tensors(folder))
    if others:
        counts = Counter(name.removeprefix("model.").partition(".")[0] for name in others)
        named = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        log.warning("%s has tensors that are not of its text model: %s.", folder, named)
    if family.quantization == MXFP4:
        stored = dequantize_mxfp4(stored)
    config = folder / "config.json"
    section = read_json(config).get("quantization_config") if config.is_file() else None
    if block := fp8_block(section):
        stored = dequantize_fp8(stored, block)
    if adapter is not None:
        stored = adapter.changed(stored, tied=decoder.config.tied_embedding)
    shapes = jax.eval_shape(decoder.init, jax.random.key(0))
    held, rest = (quantized_shapes(shapes), "bfloat16") if dtype == "nf4" else (shapes, dtype)
    alone = SingleDeviceSharding(jax.local_devices()[0])
    places = param_shardings(mesh, held) if mesh else jax.tree.map(lambda _: alone, held)
    parameters: dict[tuple, list[Tensor]] = {}
    for tensor in family.tensors(decoder.config):
        parameters.setdefault(tensor.path, []).append(tensor)
    everything = [tensor for tensors in parameters.values() for tensor in tensors]
    if unused := family.unused_names(decoder.config):
        kept = {name: x for name, x in stored.items() if not re.fullmatch(unused, name)}
        if left := sorted(stored.keys() - kept.keys()):
            log.warning("Tensors that the model does not use are left out: %s.", listed(left))
        stored = kept
    check_fit(folder, stored, everything, shapes, tied=decoder.config.tied_embedding)
    params: dict = {}
    for path, tensors in parameters.items():
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        kinds = {DTYPES[stored[tensor.name].kind] for tensor in tensors}
        own = kinds.pop() if len(kinds) == 1 else jnp.dtype("float32")
        shape, place = (reduce(getitem, path, tree) for tree in (held, places))
        read = partial(read_part, tensors=tensors, stored=stored, shape=shape.shape)
        if isinstance(shape, NF4Kernel):
            node[path[-1]] = read_nf4(partial(read, dtype=np.dtype("float32")), shape, place)
            continue
        dtype_of = held_dtype(tuple(map(DictKey, path)), own if rest is None else rest)
        read = partial(read, dtype=dtype_of)
        array = jax.make_array_from_callback(shape.shape, place, read)
        node[path[-1]] = array.block_until_ready()  # before the next one needs memory
    return params


def read_nf4(read: Callable[..., np.ndarray], shape: NF4Kernel, place: NF4Kernel) -> NF4Kernel:
    """Returns a kernel in 4 bits, of which the host reads one layer at a time.

    Args:
      read: `read_part` of the kernel.
      shape, place: the shapes and the shardings of its codes and scales.
    """
    scales: dict[Any, np.ndarray] = {}  # by the inputs and outputs of a device
    try:
        place.scales.shard_shape(shape.scales.shape)
    except ValueError:
        raise InputError(
            f"model.param_dtype=nf4 holds blocks of {BLOCK} inputs, and {shape.scales.shape[-2]} "
            "blocks cannot be divided among the devices of the mesh: use fewer along fsdp and tp, "
            "or model.param_dtype=bfloat16."
        ) from None

    def bounds(index: Any, inputs: int) -> tuple[int, ...]:
        _, rows, columns = (part.indices(n)[:2] for part, n in zip(index, shape.shape, strict=True))
        return rows[0] * inputs, min(rows[1] * inputs, shape.shape[1]), *columns

    def codes_of(index: Any) -> np.ndarray:
        first, last, *columns = own = bounds(index, 2)
        layers = [
            quantize_nf4(read((slice(layer, layer + 1), slice(first, last), slice(*columns))))
            for layer in range(shape.shape[0])
        ]
        scales[own] = np.concatenate([layer.scales for layer in layers])
        return np.concatenate([layer.codes for layer in layers])

    codes = jax.make_array_from_callback(shape.codes.shape, place.codes, codes_of)
    made = jax.make_array_from_callback(
        shape.scales.shape, place.scales, lambda index: scales[bounds(index, BLOCK)]
    )
    return jax.block_until_ready(NF4Kernel(codes, made))


def read_part(
    index: Any,  # one slice per axis; Any, because JAX's annotation allows None
    *,
    tensors: list[Tensor],
    stored: dict[str, StoredTensor],
    shape: tuple[int, ...],
    dtype: np.dtype,
    start: Any = None,
) -> np.ndarray:
    """Returns the part of a parameter at `index`, read from the tensors stacked in it.

    `start` is its value where none of the tensors is; None if they fill it.
    """
    bounds = [range(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
    whole = aligned_empty(tuple(map(len, bounds)), dtype)
    if start is not None:
        copy(np.asarray(start), whole)
    jobs = []
    for tensor in tensors:
        at = stacked_index(tensor)
        if not all(i in bound for i, bound in zip(at, bounds, strict=False)):
            continue
        place = (i - bound.start for i, bound in zip(at, bounds, strict=False))
        into = whole[(*place, ...)]
        into = into.swapaxes(-1, -2) if tensor.transposed else into
        within = tensor.of_file(tuple(bounds[len(at) :]))
        if not within:  # a number without an axis
            ((_, piece),) = stored[tensor.name].pieces(slice(0, 1))
            into[...] = piece[0]
            continue
        wanted = tuple(slice(bound.start, bound.stop) for bound in within)
        rows, *columns = wanted if tensor.part is None else tensor.part.index_of(wanted)
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop, rows.step)
        count = max(1, SPAN_BYTES * len(rows) // max(1, into.nbytes))
        for first in range(0, len(rows), count):
            here = slice(first, first + count)
            jobs.append((stored[tensor.name], rows[here], columns, into[here]))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lambda job: read_rows(*job), jobs):
            pass
    return whole


def read_rows(stored: StoredTensor, rows: np.ndarray, columns: Any, into: np.ndarray) -> None:
    """Reads the rows of a tensor with these numbers, which ascend, and of each these columns."""
    for first, piece in stored.pieces(slice(int(rows[0]), int(rows[-1]) + 1)):
        here = slice(*np.searchsorted(rows, (first, first + len(piece))))
        taken = piece if len(piece) == len(into[here]) else piece[rows[here] - first]
        copy(taken[:, *columns], into[here])


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def write_model(
    folder: Path,
    decoder: Decoder,
    params: Params,
    end_ids: tuple[int, ...],
    *,
    pad_id: int | None = None,
    kept: Mapping[str, Mapping[str, Any]] = NO_KEYS,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    wrapper: Path | None = None,
) -> None:
    """Writes config.json, generation_config.json and safetensors, one tensor after another.

    Args:
      folder: the folder to create; existing files in it are overwritten.
      params: stacked parameters on any devices; adapters are merged into their kernels.
      end_ids: all end tokens; config.json names only the first.
      pad_id: the pad token; None writes none.
      kept: further keys of config.json and generation_config.json (`Policy.kept`).
      dtype: the dtype of the files; None keeps the dtype of the parameters.
      shard_bytes: the total size above which tensors are divided among several files.
      wrapper: as in `Policy`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = model_tensors(
        decoder, params, lambda path, array: held_dtype(path, dtype or array.dtype)
    )
    if wrapper is not None:
        tensors += other_tensors(wrapper, decoder.config)
    write_tensors(folder, tensors, shard_bytes)
    write_configs(folder, decoder, end_ids, pad_id=pad_id, kept=kept, dtype=str(tensors[0].dtype))


def write_configs(
    folder: Path,
    decoder: Decoder,
    end_ids: tuple[int, ...],
    *,
    pad_id: int | None,
    kept: Mapping[str, Mapping[str, Any]],
    dtype: str,
) -> None:
    """Writes config.json and generation_config.json; see `write_model`."""
    family = FAMILIES[decoder.config.family]
    config = {
        "architectures": [family.classifier if decoder.config.labels else family.architecture],
        "model_type": family.model_type,
        **family.write_config(decoder.config),
        **write_labels(decoder.config.labels),
        "eos_token_id": end_ids[0],
        "dtype": dtype,
    }
    if wrapper := decoder.config.wrapper:
        config = wrapped(wrapper, config, kept.get("config.json", {}).get("text_config", {}))
    write_config(folder / "config.json", config, pad_id, kept)
    write_generation(folder, end_ids, pad_id=pad_id, kept=kept)


def write_generation(
    folder: Path,
    end_ids: tuple[int, ...],
    *,
    pad_id: int | None,
    kept: Mapping[str, Mapping[str, Any]],
) -> None:
    """Writes generation_config.json; see `write_model`."""
    sampled = kept.get(GENERATION, {}).get("do_sample", True)
    generation = {"eos_token_id": list(end_ids), "do_sample": sampled}
    write_config(folder / GENERATION, generation, pad_id, kept)


def write_config(
    path: Path,
    content: Mapping[str, Any],
    pad_id: int | None,
    kept: Mapping[str, Mapping[str, Any]],
) -> None:
    """Writes one of the files, with the keys of the model's own that are kept."""
    own = dict(content) if pad_id is None else {**content, "pad_token_id": pad_id}
    others = {key: x for key, x in kept.get(path.name, {}).items() if key not in own}
    path.write_text(json.dumps(own | others, indent=2) + "\n")


def write_adapter(
    folder: Path, decoder: Decoder, adapters: Params, base: str, dtype: str | None = None
) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, with the names of PEFT.

    Args:
      folder: the folder to create; existing files in it are overwritten.
      base: the folder or hub id of the base model.
      dtype: the dtype of the file; None keeps the dtype of the adapters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    modules: dict[str, list[Tensor]] = {}
    wrapper = decoder.config.wrapper
    paths = (partition.names(path) for path, _ in jax.tree.leaves_with_path(adapters))
    adapted = {tuple(path[1:-1]) for path in paths}
    for tensor in FAMILIES[decoder.config.family].tensors(decoder.config):
        if tensor.path[-1] == "kernel" and tensor.path[1:-1] in adapted:
            name = name_in_transformers(wrapper, tensor.name)
            modules.setdefault(name.removesuffix(".weight"), []).append(tensor)
    tensors, ranks = [], {}
    for module, kernels in modules.items():
        ranks[module.rpartition(".")[2]] = decoder.lora.rank * len(kernels)
        tensors += adapter_tensors(module, kernels, adapters, dtype)
    write_file(folder / ADAPTER_WEIGHTS, tensors)
    sync(folder / ADAPTER_WEIGHTS)
    targets: Any = sorted(ranks)
    if misread := misread_by_peft(decoder.config, targets):
        log.warning(
            f"PEFT 0.21 {misread}. rl4p reads the adapter (model.adapter), and an export without "
            "adapter=true merges it."
        )
    if wrapper:  # its towers have modules of the same names
        start = re.escape(name_in_transformers(wrapper, "model."))
        targets = rf"{start}.*\.({'|'.join(targets)})"
    name, _, revision = base.partition("@")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "revision": revision or None,
        "r": decoder.lora.rank,
        "lora_alpha": decoder.lora.alpha,
        "rank_pattern": {name: r for name, r in ranks.items() if r != decoder.lora.rank},
        "alpha_pattern": {
            name: decoder.lora.scale * r for name, r in ranks.items() if r != decoder.lora.rank
        },
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "inference_mode": True,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def misread_by_peft(config: DecoderConfig, modules: list[str]) -> str:
    """Returns what PEFT makes of adapters of these modules; "" if it reads them."""
    if config.family == "nemotron_h" and "out_proj" in modules:
        return "refuses adapters of out_proj in models of nemotron_h"
    feed_forward = {"gate_proj", "up_proj", "down_proj"} & {*modules}
    if config.experts and feed_forward:
        of = ", ".join(sorted(feed_forward))
        return f"may take adapters of {of} for those of the experts, and lose them"
    return ""


def adapter_tensors(
    module: str, kernels: list[Tensor], adapters: Params, dtype: str | None
) -> list[NewTensor]:
    """Returns the matrices A and B of one module of PEFT, which may consist of several kernels.

    The rank of the module is then the sum of theirs, and B has zeros where a kernel meets another.
    """
    pairs = []
    for kernel in kernels:
        beside = reduce(getitem, kernel.path[:-1], adapters)
        pair = []
        for ours, name in (("lora_a", "lora_A"), ("lora_b", "lora_B")):
            tensor = kernel._replace(name=f"base_model.model.{module}.{name}.weight", part=None)
            pair.append(ParameterTensor(tensor, [beside[ours]], dtype or beside[ours].dtype))
        pairs.append(pair)
    rank, width = pairs[0][0].shape
    out = kernels[0].part.size if kernels[0].part else pairs[0][1].shape[0]
    pieces_a, pieces_b = [], []
    for i, (kernel, (a, b)) in enumerate(zip(kernels, pairs, strict=True)):
        ranks = slice(i * rank, (i + 1) * rank)
        part = kernel.part or TensorPart(axis=0, start=0, step=1, size=out)
        pieces_a.append(((ranks, slice(0, width)), a))
        pieces_b.append((part.index_of((slice(0, b.shape[0]), ranks)), b))
    total = rank * len(kernels)
    return [AssembledTensor((total, width), pieces_a), AssembledTensor((out, total), pieces_b)]


def write_policy(
    folder: Path,
    policy: Policy,
    trained: Params,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    *,
    adapter: bool = False,
) -> None:
    """Writes a model with its tokenizer and chat templates; the folder appears once complete.

    Args:
      folder: the folder to write, which must be absent or empty.
      dtype, shard_bytes: see `write_model`.
      adapter: whether to write only the adapters, for PEFT, instead of merging them.

    Raises:
      RunError: the folder could not be written.
    """
    folder = folder.absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made:
            unfinished = Path(made) / folder.name
            if adapter:
                write_adapter(unfinished, policy.decoder, trained, policy.base, dtype)
                write_generation(unfinished, policy.end_ids, pad_id=policy.pad_id, kept=policy.kept)
            else:
                write_model(
                    unfinished,
                    policy.decoder,
                    policy.merged(trained),
                    policy.end_ids,
                    pad_id=policy.pad_id,
                    kept=policy.kept,
                    dtype=dtype,
                    shard_bytes=shard_bytes,
                    wrapper=policy.wrapper,
                )
                copy_readers(policy.wrapper, unfinished)
            save_tokenizer(policy.tokenizer, unfinished)
            if policy.chat_template is not None:
                (unfinished / "chat_template.jinja").write_text(policy.chat_template, "utf-8")
            unfinished.rename(folder)  # fails unless the target is absent or empty
    except OSError as error:
        raise RunError(f"{folder} could not be written: {error}.") from error
