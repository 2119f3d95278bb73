"""Adapters of experts, whose matrices are one parameter of the module in PEFT.

    W'[e] = W[e] + s B[e] A[e]        A [experts rank, in], B [out, rank experts]

The rows of A are grouped by expert, the columns of B by element of the rank. The files of a base
have the matrices of all experts in one tensor, or one tensor for each; transformers 5 has them in
one, and in Mixtral and others under another name.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rl4p.base.errors import InputError
from rl4p.model.adapter_matrices import Change, LowRank
from rl4p.model.tensor_files import StoredTensor

GATE_UP, DOWN = "gate_up_proj", "down_proj"
LLAMA4 = ".feed_forward.experts"  # the end of a module's name
SWAPPED = (0, 19, 1)  # the first PEFT in which `in` is the input of an expert for every model


class StoredExperts(NamedTuple):
    """The experts of a module in the files of the base model.

    Attributes:
      names: the names of gate_up_proj and down_proj; or, with {} for the expert, of the matrices
        gate, up and down of each.
      number: the number of experts.
      width, inner: the inputs and the inner elements of an expert.
      transposed: whether the matrices are [in, out] in the files; None if each has a tensor.
    """

    names: tuple[str, ...]
    number: int
    width: int
    inner: int
    transposed: bool | None


def expert_changes(
    module: str,
    matrices: LowRank,
    stored: Mapping[str, StoredTensor],
    scale_of: Callable[[str, int], float],
    version: Any,
) -> Iterator[tuple[str, Change]]:
    """Yields the tensors of experts that matrices change, and their changes; none if none fit.

    Args:
      module: the name of the experts, with base_layer if PEFT adapts a second parameter of it.
      scale_of: a function from a parameter and its rank to the factor of its matrices.
      version: the version of PEFT that wrote the adapter, if it is known.
    """
    module = module.removesuffix(".base_layer")
    experts = experts_in(module, stored)
    if experts is None or matrices.bias is not None or matrices.rank % experts.number:
        return
    out, into = matrices.shape
    parameters = {
        (2 * experts.inner, experts.width): GATE_UP,
        (experts.width, experts.inner): DOWN,
    }
    # Llama 4 does not tell PEFT that its matrices are [in, out]: since `SWAPPED` so is B A.
    as_stored = not experts.transposed or (
        module.endswith(LLAMA4) and (out == into or (out, into) not in parameters)
    )
    swapped = bool(experts.transposed) and as_stored
    parameter = parameters.get((into, out) if swapped else (out, into))
    if parameter is None:
        return
    if out == into and as_stored and numbers_of(version) < SWAPPED:
        raise InputError(
            f"The adapter of {module}.{parameter} may be transposed, as those of PEFT "
            "before 0.19.1 are: merge it with the version that wrote it, and give the merged "
            "folder."
        )
    rank = matrices.rank // experts.number
    scale = np.float32(scale_of(f"{module}.{parameter}", rank))

    def product(expert: int, rows: slice) -> np.ndarray:
        a, b = matrices.matrices
        own = b[rows, expert :: experts.number]
        return scale * (own @ a[expert * rank : (expert + 1) * rank])

    def of_all(those: slice) -> np.ndarray:
        each = [product(e, slice(None)) for e in range(those.start, those.stop)]
        return np.stack(each if as_stored else [x.T for x in each])

    if experts.transposed is not None:
        yield experts.names[parameter == DOWN], of_all
        return
    first, second, down = experts.names
    names = (first, second) if parameter == GATE_UP else (down,)
    for start, name in zip((0, experts.inner), names, strict=False):
        for expert in range(experts.number):
            yield name.format(expert), partial(rows_from, product, expert, start)


def rows_from(
    product: Callable[[int, slice], np.ndarray], expert: int, start: int, rows: slice
) -> np.ndarray:
    """Returns rows of the matrix that begins at row `start` of the product of an expert."""
    return product(expert, slice(rows.start + start, rows.stop + start))


def experts_in(module: str, stored: Mapping[str, StoredTensor]) -> StoredExperts | None:
    """Returns how the files hold the experts of a module; None if they have none, or others."""
    block = module.removesuffix(".experts")
    for names in (
        (f"{module}.{GATE_UP}", f"{module}.{DOWN}"),
        (f"{block}.input_linear.weight", f"{block}.output_linear.weight"),
    ):
        shapes = [stored[name].shape for name in names if name in stored]
        if list(map(len, shapes)) == [3, 3]:
            (number, *first), (_, *second) = shapes
            if first == [second[1], 2 * second[0]]:
                return StoredExperts(names, number, second[1], second[0], transposed=True)
            if first == [2 * second[1], second[0]]:
                return StoredExperts(names, number, second[0], second[1], transposed=False)
    for start, names in (
        (module, ("gate_proj", "up_proj", DOWN)),
        (in_files(module), ("w1", "w3", "w2")),
    ):
        each = tuple(f"{start}.{{}}.{name}.weight" for name in names)
        number = 0
        while each[2].format(number) in stored:
            number += 1
        if number and len(shape := stored[each[2].format(0)].shape) == 2:
            return StoredExperts(each, number, *shape, transposed=None)
    return None


def in_files(module: str) -> str:
    """Returns the name in files of a module that transformers 5 renamed.

    It did so where it fused experts, and for the shared experts of Hunyuan.
    """
    if ".shared_experts." in module:
        return module.replace(".shared_experts.", ".shared_mlp.")
    return module.replace(".mlp.", ".block_sparse_moe.")


def numbers_of(version: Any) -> tuple[int, ...]:
    """Returns the numbers of a version such as 0.21.2; () for anything else."""
    known = re.match(r"(\d+)\.(\d+)\.(\d+)", version) if isinstance(version, str) else None
    return tuple(map(int, known.groups())) if known else ()
