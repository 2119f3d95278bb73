"""Counts of the floating-point operations of a traced function, from the shapes of its products."""

import math
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from rl4p.learner.microbatches import max_iterations
from rl4p.model.experts import devices_of_experts


def product_flops(jaxpr: Jaxpr, iterations: int = 1, devices: int = 1) -> float:
    """Returns the operations on all devices together, with those that a backward pass recomputes.

    A scan counts by its length, a loop of `microbatches.fold` by its maximum number of iterations,
    and a conditional by its most expensive branch. Only `dot_general` and `ragged_dot` count.

    Args:
      iterations: the number of iterations of every other loop.
      devices: the number of devices that divide the experts, unless a scope names it.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        scope = str(equation.source_info.name_stack)
        share = devices_of_experts(scope) or devices
        if name == "dot_general":
            total += of_dot(equation)
        elif name in ("ragged_dot", "ragged_dot_general"):  # each row is multiplied by one matrix
            # A device has the rows of all experts, and multiplies those of its own.
            total += of_ragged_dot(equation) / share
        inner = [product_flops(child, iterations, share) for child in children(params)]
        if name == "while":
            most = max_iterations(scope)
            total += sum(inner) * (iterations if most is None else most)
        elif name == "cond":
            total += max(inner)
        elif name == "scan":
            total += sum(inner) * params["length"]
        elif name == "shard_map":  # inside, shapes are of one shard; elsewhere they are global
            mesh = params["mesh"].shape
            total += sum(inner) * math.prod(mesh[axis] for axis in params["newly_manual_axes"])
        elif name == "pallas_call":
            total += sum(inner) * math.prod(params["grid_mapping"].grid)
        else:
            total += sum(inner)
    return total


def children(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yields the jaxprs within an equation."""
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each


def of_ragged_dot(equation: Any) -> float:
    rows, width = equation.invars[0].aval.shape[-2:]
    return 2.0 * rows * width * equation.outvars[0].aval.shape[-1]


def of_dot(equation: Any) -> float:
    """Returns 2 x the number of multiplied pairs, a multiplication and an addition for each."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    met = math.prod(shape[axis] for axis in contracted)
    return 2.0 * met * math.prod(equation.outvars[0].aval.shape)
