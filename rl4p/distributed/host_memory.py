"""Arrays in the memory of the host, which GPUs and TPUs read and write.

An array there has the sharding of an array on the devices, with another kind of memory. Within a
compiled function, the type of an array says in which memory it is.
"""

from typing import Any

import jax
from jax import memory

from rl4p.base.types import Array

HOST = "pinned_host"  # JAX's name
DEVICE = memory.Space.Device


def offloaded(tree: Any) -> Any:
    """Returns arrays in the memory of the host."""
    return jax.device_put(tree, memory.Space.Host)


def on_device(tree: Any) -> Any:
    """Returns arrays on the devices, with copies of those that are in the memory of the host."""
    return jax.tree.map(lambda x: x if space_of(x) is DEVICE else jax.device_put(x, DEVICE), tree)


def as_before(tree: Any, before: Any) -> Any:
    """Moves each array to the memory that holds its counterpart in `before`."""
    return jax.tree.map(lambda x, old: x if space_of(old) is DEVICE else offloaded(x), tree, before)


def space_of(x: Array) -> Any:
    return jax.typeof(x).memory_space


def is_offloaded(x: Any) -> bool:
    """Returns whether an array, or a shape with its sharding, is in the memory of the host."""
    return x.sharding is not None and x.sharding.memory_kind == HOST
