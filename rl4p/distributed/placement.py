"""The creation of parameters and optimizer states on a mesh, their shardings, and their memory.

An array in the memory of the host, which GPUs and TPUs read and write, has the sharding of an array
on the devices, with another kind of memory. Within a compiled function, the type of an array says
in which memory it is.
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.monitoring
from jax import memory
from jax.sharding import NamedSharding

from rl4p.base.types import Params
from rl4p.distributed.mesh import Mesh, SamplingMesh
from rl4p.distributed.partition import (
    changed_for_decoding,
    for_decoding,
    sampling_specs,
    specs,
    specs_beside,
)
from rl4p.distributed.processes import place

HOST = "pinned_host"  # JAX's name
DEVICE = memory.Space.Device


def offloaded(tree: Any) -> Any:
    """Returns arrays in the memory of the host."""
    return jax.device_put(tree, memory.Space.Host)


def on_device(tree: Any) -> Any:
    """Returns arrays on the devices, with copies of those that are in the memory of the host."""
    return jax.tree.map(
        lambda x: x if jax.typeof(x).memory_space is DEVICE else jax.device_put(x, DEVICE), tree
    )


def as_before(tree: Any, before: Any) -> Any:
    """Moves each array to the memory that holds its counterpart in `before`."""
    return jax.tree.map(
        lambda x, old: x if jax.typeof(old).memory_space is DEVICE else offloaded(x), tree, before
    )


def is_offloaded(x: Any) -> bool:
    """Returns whether an array, or a shape with its sharding, is in the memory of the host."""
    return x.sharding is not None and x.sharding.memory_kind == HOST


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


def for_sampling(mesh: Mesh, params: Params, dtype: str, places: Any = None) -> Params:
    """Returns the parameters on the sampling mesh, with matrices in the dtype of activations.

    Their width is not divided, because every decode step reads all of it.
    """
    changed = changed_for_decoding(params, dtype)
    params = params | for_decoding({name: params[name] for name in changed}, dtype, places)
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


def return_freed_memory(platform: str) -> None:
    """Returns the memory of freed arrays to the system, where the devices use that of the host.

    glibc keeps freed blocks of up to 32 MB, such as the cache of a layer, and what compilers used.
    The temporaries of a program are larger, and would be allocated beside them.
    """
    if platform == "cpu" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX sends it before the program runs
LONG_COMPILATION = 5.0  # seconds: shorter ones leave less behind


def after_compilation(event: str, duration_secs: float, **_: Any) -> None:
    """Returns to the system what a compiler has freed, before the program allocates."""
    if event == COMPILED and duration_secs >= LONG_COMPILATION:
        return_freed_memory(jax.default_backend())


jax.monitoring.register_event_duration_secs_listener(after_compilation)


GIB = 2**30
REPORTED = {"bytes_in_use": "memory/used_gib", "peak_bytes_in_use": "memory/peak_gib"}


def device_memory() -> dict[str, float]:
    """Returns the memory of the fullest device in GiB: in use, and the most since the start.

    The numbers come from the allocator, without waiting for a device. CPUs report none, so that
    the result is {} there.
    """
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return {
        name: max(each[key] for each in stats) / GIB
        for key, name in REPORTED.items()
        if all(key in each for each in stats)
    }
