"""Adapters of a file as the start of the adapters that a run trains.

The files have one A for a matrix that fuses several projections, such as qkv_proj of Phi; the run
has one for each. `write_adapter` puts theirs below one another, with zeros between the B; PEFT has
one A for all. Both are read: the second begins with copies.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from math import isclose
from operator import getitem
from typing import NamedTuple

import jax
import numpy as np
from jax.tree_util import DictKey

from rl4p.base.errors import InputError
from rl4p.base.types import Params
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import param_shardings
from rl4p.model.adapter import Adapter
from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES, Tensor
from rl4p.model.lora import LoRA
from rl4p.model.model_tensors import stacked_index

LEAVE = "leave model.lora out, which merges it and trains all parameters"


class Shape(NamedTuple):
    """The rank and the scale of one module's adapter, as `LoRA` defines them."""

    rank: int
    scale: float


def begin(adapter: Adapter, decoder: Decoder, shapes: Params, mesh: Mesh) -> Params:
    """Reads the adapters of a file as those that are trained.

    Args:
      shapes: the shapes of new adapters (`LoRA.init`).

    Raises:
      InputError: they are not those of `model.lora`.
    """
    check_begin(adapter, decoder, shapes)
    places = param_shardings(mesh, shapes)
    modules = adapted_modules(decoder, shapes)
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    for module, kernels in modules.items():
        pairs = split(adapter, module, kernels, shapes, decoder.lora.rank)
        for kernel, (a, b) in zip(kernels, pairs, strict=True):
            beside, at = reduce(getitem, kernel.path[:-1], params), stacked_index(kernel)
            beside["lora_a"][at], beside["lora_b"][at] = a.T, b.T
    return jax.tree.map(
        lambda x, place: jax.make_array_from_callback(x.shape, place, x.__getitem__), params, places
    )


def check_begin(adapter: Adapter, decoder: Decoder, shapes: Params) -> None:
    """Raises InputError unless `model.lora` has the rank, scale and targets of an adapter.

    Args:
      shapes: the shapes of new adapters.
    """
    lora, modules = decoder.lora, adapted_modules(decoder, shapes)
    if adapter.matrices.keys() == modules.keys() and not adapter.whole:
        found = {module: shape_of(adapter, module) for module in modules}
        if all(
            x.rank in (lora.rank, lora.rank * len(modules[module]))
            and isclose(x.scale, lora.scale, rel_tol=1e-6)
            and adapter.matrices[module].bias is None
            for module, x in found.items()
        ):
            return
    if (own := lora_of(adapter, decoder)) is None:
        raise InputError(
            f"model.lora cannot go on with the adapter in {adapter.folder}, which has more than "
            f"matrices of one rank and scale for projections of all layers: {LEAVE}."
        )
    words = [
        f"model.lora.rank={own.rank}",
        f"model.lora.alpha={own.alpha:.15g}",
        f"model.lora.targets=[{','.join(own.targets)}]",
    ]
    raise InputError(
        f"model.lora is not the adapter in {adapter.folder}: {LEAVE}, or train it on with "
        f"{shlex.join(words)}"
    )


def lora_of(adapter: Adapter, decoder: Decoder) -> LoRA | None:
    """Returns the options with which adapters of a file are trained on; None if there are none."""
    if adapter.whole or not adapter.matrices or any(x.bias for x in adapter.matrices.values()):
        return None
    everything = modules_of(kernels_of(decoder))
    modules = {name: kernels for name, kernels in everything.items() if name in adapter.matrices}
    names = list(dict.fromkeys(map(name_of, changed_kernels(adapter, decoder, modules))))
    wanted = modules_of(
        (module, kernel)
        for module, kernel in kernels_of(decoder)
        if name_of(kernel) in names or kernel.path[-2] in names
    )
    if adapter.matrices.keys() != wanted.keys():
        return None
    found = {module: shape_of(adapter, module) for module in wanted}
    scale = next(iter(found.values())).scale
    ranks = [{x.rank, x.rank / len(wanted[module])} for module, x in found.items()]
    if all(isclose(x.scale, scale) for x in found.values()):
        for rank in sorted(int(x) for x in set.intersection(*ranks) if x % 1 == 0):
            lora = LoRA(rank=rank, alpha=scale * rank, targets=tuple(names))
            if can_begin(adapter, decoder, wanted, lora):
                return lora
    return None


def can_begin(
    adapter: Adapter, decoder: Decoder, modules: Mapping[str, list[Tensor]], lora: LoRA
) -> bool:
    """Returns whether the matrices of an adapter are those of some options."""
    key = jax.random.key(0)
    shapes = jax.eval_shape(lora.init, key, jax.eval_shape(decoder.init, key))
    try:
        for module, kernels in modules.items():
            split(adapter, module, kernels, shapes, lora.rank)
    except InputError:
        return False
    return True


def changed_kernels(
    adapter: Adapter, decoder: Decoder, modules: Mapping[str, list[Tensor]]
) -> Iterator[Tensor]:
    """Yields the projections that an adapter changes: in a fused matrix, those with rows of B.

    All of them if it has none, because it was not trained.
    """
    shapes = jax.eval_shape(decoder.init, jax.random.key(0))
    for module, kernels in modules.items():
        _, b = adapter.matrices[module].matrices
        for kernel in kernels:
            rows = slice(0, reduce(getitem, kernel.path, shapes).shape[-1])
            index = kernel.part.index_of((rows, slice(None))) if kernel.part else ()
            if b[index].any() or not b.any():
                yield kernel


def adapted_modules(decoder: Decoder, shapes: Params) -> Mapping[str, list[Tensor]]:
    """Returns the projections that are adapted, by the module of the files that has them."""
    adapted = {path[:-1] for path, _ in jax.tree.leaves_with_path(shapes)}
    return modules_of(
        (module, kernel)
        for module, kernel in kernels_of(decoder)
        if tuple(map(DictKey, kernel.path[:-1])) in adapted
    )


def modules_of(kernels: Iterable[tuple[str, Tensor]]) -> dict[str, list[Tensor]]:
    """Returns projections by their modules."""
    modules: dict[str, list[Tensor]] = {}
    for module, kernel in kernels:
        modules.setdefault(module, []).append(kernel)
    return modules


def kernels_of(decoder: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yields each projection of a layer, and the module of the files that has it."""
    for tensor in FAMILIES[decoder.config.family].tensors(decoder.config):
        if tensor.path[-1] == "kernel":
            yield tensor.name.removesuffix(".weight"), tensor


def name_of(kernel: Tensor) -> str:
    """Returns the name of a projection in `model.lora.targets`."""
    return ".".join(map(str, kernel.path[1:-1]))


def shape_of(adapter: Adapter, module: str) -> Shape:
    rank = adapter.matrices[module].rank
    return Shape(rank, adapter.scale(module, rank))


def split(
    adapter: Adapter, module: str, kernels: list[Tensor], shapes: Params, rank: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns A and B of each projection in a module.

    Raises:
      InputError: the matrices are of another model, or change another projection too.
    """
    beside = [reduce(getitem, kernel.path[:-1], shapes) for kernel in kernels]
    inputs, outputs = beside[0]["lora_a"].shape[-2], [x["lora_b"].shape[-1] for x in beside]
    out = kernels[0].part.size if kernels[0].part else outputs[0]
    if adapter.matrices[module].shape != (out, inputs):
        raise InputError(
            f"{adapter.folder} does not fit its base model {adapter.base}: {module} is a matrix "
            f"{[out, inputs]}, and the adapter has {adapter.matrices[module]}."
        )
    a, b = adapter.matrices[module].matrices
    rest, pairs = b.copy(), []
    for i, (kernel, width) in enumerate(zip(kernels, outputs, strict=True)):
        own = slice(i * rank, (i + 1) * rank) if len(a) > rank else slice(0, rank)
        within = (slice(0, width), own)
        index = within if kernel.part is None else kernel.part.index_of(within)
        pairs.append((a[own], b[index]))
        rest[index] = 0
    if rest.any():
        raise InputError(
            f"model.lora cannot go on with the adapter in {adapter.folder}, whose {module} changes "
            f"more than {', '.join(map(name_of, kernels))}: {LEAVE}."
        )
    return pairs
