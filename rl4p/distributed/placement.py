"""The creation of parameters and optimizer states on a mesh, and their shardings."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from rl4p.base.types import Params
from rl4p.distributed.host_memory import HOST
from rl4p.distributed.mesh import Mesh, SamplingMesh
from rl4p.distributed.partition import (
    changed_for_decoding,
    for_decoding,
    sampling_specs,
    specs,
    specs_beside,
)
from rl4p.distributed.processes import place


def param_shardings(mesh: Mesh, params: Params) -> Any:
    """Returns the shardings (`partition.py`) of a tree of parameters, or of their shapes."""
    return jax.tree.map(partial(NamedSharding, mesh.devices), specs(params, mesh.param_axes))


def optimizer_state_shardings(
    mesh: Mesh, state: Any, params: Params, *, offload: bool = False
) -> Any:
    """Returns the shardings of an optimizer's state, in the memory of the host if `offload`."""
    sharding = partial(NamedSharding, mesh.devices, memory_kind=HOST if offload else None)
    return jax.tree.map(sharding, specs_beside(state, params, mesh.param_axes))


def init(mesh: Mesh, function: Callable[..., Params], *arguments: Any) -> Params:
    """Returns the new parameters function(*arguments); each device creates only its own shard."""
    shardings = param_shardings(mesh, jax.eval_shape(function, *arguments))
    return jax.jit(function, out_shardings=shardings)(*arguments)


def shapes(mesh: Mesh, function: Callable[..., Params], *arguments: Any) -> Params:
    """Returns the shapes and shardings of the parameters that `init` would return."""
    params = jax.eval_shape(function, *arguments)
    return with_shardings(params, param_shardings(mesh, params))


def init_beside(
    mesh: Mesh, function: Callable[[Params], Any], params: Params, *, offload: bool = False
) -> Any:
    """Returns the optimizer state function(params); each moment is sharded as its parameter."""
    shapes = jax.eval_shape(function, params)
    shardings = optimizer_state_shardings(mesh, shapes, params, offload=offload)
    return jax.jit(function, out_shardings=shardings)(params)


def for_sampling(mesh: Mesh, params: Params, dtype: str) -> Params:
    """Returns the parameters on the sampling mesh, with matrices in the dtype of activations.

    Their width is not divided, because every decode step reads all of it.
    """
    changed = changed_for_decoding(params, dtype)
    params = params | for_decoding({name: params[name] for name in changed}, dtype)
    if not isinstance(mesh, SamplingMesh) and mesh.devices.shape["fsdp"] == 1:
        return params
    return place(params, sampling_shardings(mesh, params))


def sampling_shardings(mesh: Mesh, params: Params) -> Any:
    """Returns the shardings of a tree of parameters on the sampling mesh."""
    specs = sampling_specs(params, mesh.product_axes, mesh.head_axes)
    return jax.tree.map(partial(NamedSharding, mesh.devices), specs)


def constrain(mesh: Mesh, params: Params, state: Any) -> tuple[Params, Any]:
    """Constrains both trees to their shardings, which the compiler might otherwise change."""
    if mesh.size == 1:
        return params, state
    shardings = param_shardings(mesh, params), optimizer_state_shardings(mesh, state, params)
    return jax.lax.with_sharding_constraint((params, state), shardings)


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """Returns the shapes of arrays (or of shapes) with the given shardings."""
    return jax.tree.map(
        lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to), shapes, shardings
    )


def like_of(params: Params) -> Params:
    """Returns the shapes, dtypes and shardings of parameters, without their memory."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params
    )
