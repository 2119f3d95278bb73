"""Arrays in the memory of the host, which GPUs and TPUs read and write.

An array there has the sharding of an array on the devices, with another kind of memory. A compiled
function reads in the type of an array where it is.
"""

from typing import Any

import jax
from jax import memory

from rl4p.types import Array

HOST = "pinned_host"  # JAX's name


def offloaded(tree: Any) -> Any:
    """Returns arrays in the memory of the host."""
    return jax.device_put(tree, memory.Space.Host)


def on_device(tree: Any, after: Any) -> tuple[Any, Any]:
    """Returns a tree on the devices, and `after`; for compiled functions.

    What is in the memory of the host is copied once all arrays of `after` have been computed. If
    nothing is, both trees stay unchanged.
    """
    if not any(space_of(x) is memory.Space.Host for x in jax.tree.leaves(tree)):
        return tree, after
    tree, after = jax.lax.optimization_barrier((tree, after))
    return jax.device_put(tree, memory.Space.Device), after


def as_before(tree: Any, before: Any) -> Any:
    """Returns arrays in the memories in which those of an equal tree are."""
    return jax.tree.map(
        lambda x, old: x if space_of(old) is memory.Space.Device else offloaded(x), tree, before
    )


def space_of(x: Array) -> memory.Space:
    return jax.typeof(x).memory_space


def is_offloaded(x: Any) -> bool:
    """Returns whether an array, or a shape with its sharding, is in the memory of the host."""
    return x.sharding is not None and x.sharding.memory_kind == HOST
