"""The calls of a function on each device's rows, and the reductions within such a function.

With context parallelism, the devices along `cp` share each row and divide its columns.

Each of n devices holds the activations of T / n neighbouring columns, through all layers and for
the head. Attention exchanges columns for heads (Ulysses, 2309.14509): a device receives all columns
of 1 / n of its heads, so attention and its kernels, masks and positions are the same as on one
device, and every device has the same work under a causal mask. KV heads that n does not divide are
repeated.

Numbers of tokens, such as log-probabilities, are gathered. The devices then compute one loss, each
the same, from all columns of a row, so a loss may read a row as a whole. The gradient of a device
is what its own columns add, and the sum over `cp` is the gradient.

The functions of columns are called within a function that `on_rows` runs on each device. With one
device along `cp`, they change nothing.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.base.types import Array, Params
from rl4p.distributed.mesh import ROW_AXES, Mesh
from rl4p.distributed.partition import along_tp, specs

ROWS, REPLICATED = PartitionSpec(ROW_AXES), PartitionSpec()


def on_rows(mesh: Mesh, function: Callable, shared: Any, rows: Any, *, results: Any) -> Any:
    """Calls function(shared, rows) on each device with that device's shard of the rows.

    Devices wait for one another only where the function reduces (`total`, `largest`) or gathers
    parameters (`partition.gather`). Along `cp` they have the same rows, whose columns the function
    divides (`own`). Along `tp` the compiler divides the work.

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
    free = PartitionSpec.UNCONSTRAINED
    wanted = jax.tree.map(lambda x: PartitionSpec(None, *[free] * (x.ndim - 1)), tree)
    shardings = jax.tree.map(partial(NamedSharding, mesh.devices), wanted)
    return jax.lax.with_sharding_constraint(tree, shardings)


def total(mesh: Mesh, tree: Any) -> Any:
    return jax.lax.psum(tree, axes) if (axes := row_axes(mesh)) else tree


def total_of_columns(tree: Any) -> Any:
    """Returns the sums over the devices that divide the columns."""
    return tree if devices() == 1 else jax.lax.psum(tree, "cp")


def largest(mesh: Mesh, tree: Any) -> Any:
    return jax.lax.pmax(tree, axes) if (axes := row_axes(mesh)) else tree


def total_gradient(mesh: Mesh, gradient: Params) -> Params:
    """Sums a gradient over devices, except along the axes where gathering has summed it."""
    along_cp = ("cp",) if mesh.column_shards > 1 else ()

    def summed(spec: PartitionSpec, x: Array) -> Array:
        axes = row_axes(mesh, without="fsdp") if any(spec) else row_axes(mesh) + along_cp
        return jax.lax.psum(x, axes) if axes else x

    return jax.tree.map(summed, parts(mesh, gradient), gradient)


def row_axes(mesh: Mesh, without: str | None = None) -> tuple[str, ...]:
    """Returns the axes of more than one device that rows are sharded over, except `without`."""
    return tuple(axis for axis in ROW_AXES if mesh.devices.shape[axis] > 1 and axis != without)


HEADS = PartitionSpec(None, None, "tp")  # of arrays [B, T, H, ...]


def devices() -> int:
    """Returns how many devices divide the columns here."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape["cp"] if "cp" in mesh.manual_axes else 1


def own(x: Array, axis: int = 1) -> Array:
    """Returns this device's part of an axis, such as the columns of [B, T]."""
    n, size = devices(), x.shape[axis]
    if n == 1:
        return x
    if size % n:
        raise ValueError(f"{n} devices along cp cannot divide {size} columns evenly.")
    start = jax.lax.axis_index("cp") * (size // n)
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), start, size // n, axis)


def padded(rows: Any) -> Any:
    """Returns arrays [B, T, ...] with columns of zeros up to a multiple of the devices."""
    n = devices()

    def pad(x: Array) -> Array:
        if x.ndim == 1 or x.shape[1] % n == 0:
            return x
        return jnp.pad(x, [(0, -x.shape[1] % n if axis == 1 else 0) for axis in range(x.ndim)])

    return jax.tree.map(pad, rows)


def whole(x: Array) -> Array:
    """Returns all columns [B, T, ...] from the parts of the devices.

    All devices must compute the same from the result: the gradient of a part is that of one device,
    and no sum.
    """
    return x if devices() == 1 else gathered(x)


@jax.custom_vjp
def gathered(x: Array) -> Array:
    return jax.lax.all_gather(jnp.asarray(x), "cp", axis=1, tiled=True)


gathered.defvjp(lambda x: (gathered(x), None), lambda _, dy: (own(dy),))


def to_heads(q_BTHh: Array, *keys_BTKh: Array) -> tuple[Array, ...]:
    """Exchanges queries, and any keys and values, of own columns for all columns of own heads."""
    n = devices()
    if n == 1:
        return q_BTHh, *keys_BTKh
    tp = jax.sharding.get_abstract_mesh().shape["tp"]
    copied = (
        jnp.repeat(x, n // math.gcd(n, x.shape[2] // tp), axis=2)  # for each device
        for x in keys_BTKh
    )
    exchange = partial(jax.lax.all_to_all, axis_name="cp", split_axis=2, concat_axis=1, tiled=True)
    return tuple(along_tp(exchange, HEADS)(x) for x in (q_BTHh, *copied))


def to_columns(x_BTN: Array) -> Array:
    """Exchanges all columns of own heads for own columns of all heads; N is heads x head width."""
    if devices() == 1:
        return x_BTN
    exchange = partial(jax.lax.all_to_all, axis_name="cp", split_axis=1, concat_axis=2, tiled=True)
    return along_tp(exchange, HEADS)(x_BTN)


def own_heads(x_H: Array) -> Array:
    """Returns the numbers of the heads that `to_heads` gives this device."""
    return along_tp(partial(own, axis=0), PartitionSpec("tp"))(x_H) if devices() > 1 else x_H


# A token is predicted by the column before it.


def predicting(hidden_BTD: Array) -> Array:
    """Returns the activations of the columns that predict a token: all but the last.

    Several devices keep the last one, so that they divide the columns evenly.
    """
    return hidden_BTD[:, :-1] if devices() == 1 else hidden_BTD


def predicted(x_BT: Array) -> Array:
    """Returns, for each column of `predicting`, the number of the token that it predicts."""
    if devices() == 1:
        return x_BT[:, 1:]
    return own(jnp.pad(x_BT[:, 1:], ((0, 0), (0, 1), *((0, 0),) * (x_BT.ndim - 2))))


def shift_to_targets(x_BT: Array) -> Array:
    """Moves values from the columns of `predicting` to the tokens that they predict: [B, T].

    The first column, which no column predicts, is 0.
    """
    return jnp.pad(x_BT if devices() == 1 else whole(x_BT)[:, :-1], ((0, 0), (1, 0)))
