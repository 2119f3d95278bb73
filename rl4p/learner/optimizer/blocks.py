"""The classification of parameter leaves: matrices and vectors, single or stacked over layers.

Leaves under `layers` are stacked along L, and leaves of experts along L and E. An optimizer that
looks at more than single numbers must handle each block of the stack separately.
"""

import math
from typing import Any

import jax
import optax

from rl4p.base.types import Array, Params
from rl4p.distributed.parameters import declared


def is_matrix(params: Params) -> Params:
    """Returns a tree that is True at matrices, stacked or not.

    A kernel of one dimension (a head with one output) is a vector.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: declared(path).matrix and leaf.ndim >= 2, params
    )


def is_inner_matrix(params: Params) -> Params:
    """Returns a tree that is True at matrices, except those from or to the vocabulary or labels."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: declared(path).inner and leaf.ndim >= 2, params
    )


def stacked_axes(params: Params) -> Params:
    """Returns the number of leading axes of each leaf that stack blocks: 0, 1 (L) or 2 (L, E)."""

    def count(path: Any, leaf: Array, matrix: bool) -> int:
        if matrix:
            return leaf.ndim - 2
        return int(any(entry.key == "layers" for entry in path))

    return jax.tree_util.tree_map_with_path(count, params, is_matrix(params))


def blockwise(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a transform that treats each block of each leaf as if it were the only parameter.

    The state is a tree like the parameters; each leaf holds the stacked states of its blocks.
    """

    def over_blocks(function: Any, leaf: Array, axes: int, *others: Any) -> Any:
        shape = leaf.shape[:axes]
        blocks = math.prod(shape)
        flat = jax.tree.map(lambda x: x.reshape(blocks, *x.shape[axes:]), (leaf, *others))
        results = jax.vmap(function)(*flat)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)

    def init(params: Params) -> Any:
        def one(param: Array, axes: int) -> Any:
            return over_blocks(transform.init, param, axes)

        return jax.tree.map(one, params, stacked_axes(params))

    def update(gradient: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        if params is None:
            raise ValueError("A blockwise transform needs the parameters: pass params to update.")
        leaves, treedef = jax.tree.flatten(gradient)
        results = [
            over_blocks(transform.update, *leaf_and_rest)
            for leaf_and_rest in zip(
                leaves,
                jax.tree.leaves(stacked_axes(params)),
                treedef.flatten_up_to(state),
                jax.tree.leaves(params),
                strict=True,
            )
        ]
        updates, states = zip(*results, strict=True)
        return treedef.unflatten(updates), treedef.unflatten(states)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]
