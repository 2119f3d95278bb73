"""The calls of a function on each device's rows, and the reductions within such a function."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.base.types import Array, Params
from rl4p.distributed.mesh import ROW_AXES, Mesh
from rl4p.distributed.partition import specs

ROWS, REPLICATED = PartitionSpec(ROW_AXES), PartitionSpec()


def on_rows(mesh: Mesh, function: Callable, shared: Any, rows: Any, *, results: Any) -> Any:
    """Calls function(shared, rows) on each device with that device's shard of the rows.

    Devices wait for one another only where the function reduces (`total`, `largest`) or gathers
    parameters (`partition.gather`). Along `cp` they have the same rows, whose columns the function
    divides (`columns.py`). Along `tp` the compiler divides the work.

    Args:
      shared: scalars, and parameters sharded along `fsdp` and `cp`.
      results: partition specs of the result: `ROWS`, `REPLICATED`, or `parts(mesh, params)`.
    """
    if mesh.size == 1:
        return function(shared, rows)
    return jax.shard_map(
        function,
        mesh=mesh.devices,
        in_specs=(parts(mesh, shared), ROWS),
        out_specs=results,
        # With tp, its axis stays with the compiler; without, all axes must be manual.
        axis_names={x for x in mesh.devices.shape if x != "tp" or mesh.devices.shape[x] == 1},
        check_vma=False,
    )(shared, rows)


def parts(mesh: Mesh, params: Params) -> Any:
    """Returns the partition specs of parameters, or their gradient, along `fsdp` and `cp`."""
    return specs(params, tuple(axis for axis in mesh.param_axes if axis != "tp"))


def gather_rows(mesh: Mesh, tree: Any) -> Any:
    """Returns the arrays with all rows on each device; the sharding of other axes stays."""
    if mesh.row_shards == 1:
        return tree

    def gathered(x: Array) -> Array:
        spec = PartitionSpec(None, *[PartitionSpec.UNCONSTRAINED] * (x.ndim - 1))
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh.devices, spec))

    return jax.tree.map(gathered, tree)


def total(mesh: Mesh, tree: Any) -> Any:
    return jax.lax.psum(tree, axes) if (axes := row_axes(mesh)) else tree


def total_gradient(mesh: Mesh, gradient: Params) -> Params:
    """Sums a gradient over devices, except along the axes where gathering has summed it."""
    along_cp = ("cp",) if mesh.column_shards > 1 else ()

    def summed(spec: PartitionSpec, x: Array) -> Array:
        divided = any(spec)
        axes = row_axes(mesh, without="fsdp") if divided else row_axes(mesh) + along_cp
        return jax.lax.psum(x, axes) if axes else x

    return jax.tree.map(summed, parts(mesh, gradient), gradient)


def largest(mesh: Mesh, tree: Any) -> Any:
    return jax.lax.pmax(tree, axes) if (axes := row_axes(mesh)) else tree


def row_axes(mesh: Mesh, without: str | None = None) -> tuple[str, ...]:
    """Returns the axes of more than one device that rows are sharded over, except `without`."""
    return tuple(axis for axis in ROW_AXES if mesh.devices.shape[axis] > 1 and axis != without)
