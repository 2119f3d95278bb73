"""How parameters lie on the devices: one table from their names to axes of the mesh.

Each axis of a parameter has a name, and that name says which axis of the mesh divides it. What is
divided along `fsdp` is gathered where it is used, and its gradient is added up into the parts; what
is divided along `tp` stays so, and the compiler adds up what products leave in parts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from rl4p.distributed.parameters import declared
from rl4p.types import Array, Params

GATHERED = "gathered parameters"  # what a backward pass gathers again, if it keeps all else

# By the name of an axis, the axis of the mesh that divides it.
RULES = {
    "width": "fsdp",  # in every large parameter once, so each device holds its share of all
    "vocabulary": "tp",  # logits in parts: a softmax adds up two numbers for each token
    "heads": "tp",  # a head's attention needs no other head
    "key_value_heads": "tp",  # as the query heads that read them
    "feed_forward": "tp",  # elementwise between two products: one sum for a layer
}


def spec(path: tuple, ndim: int, axes: tuple[str, ...] = ("fsdp", "tp")) -> PartitionSpec:
    """Where a parameter of this path is divided by these axes of the mesh.

    Axes in front of those of the table (layers) are not divided.
    """
    names = declared(path).axes if ndim else ()  # numbers stand beside parameters
    front = ndim - len(names)
    if front < 0:
        return PartitionSpec()
    of_mesh = (RULES.get(name or "") for name in names)
    divided = [axis if axis in axes else None for axis in of_mesh]
    if len(set(filter(None, divided))) < len([axis for axis in divided if axis]):
        raise ValueError(f"{keys(path)}: {names} would be divided as {divided}, one axis twice.")
    return PartitionSpec(*[None] * front, *divided) if any(divided) else PartitionSpec()


def specs(tree: Any, axes: tuple[str, ...] = ("fsdp", "tp")) -> Any:
    """`spec` of each leaf of a tree of parameters, and of what else stands beside them."""
    return jax.tree.map_with_path(lambda path, x: spec(path, jnp.ndim(x), axes), tree)


def specs_beside(tree: Any, params: Params) -> Any:
    """Of an optimizer's state: what has a parameter's name and shape lies as it does."""
    shapes = {keys(path): jnp.shape(x) for path, x in jax.tree.leaves_with_path(params)}

    def of(path: tuple, x: Any) -> PartitionSpec:
        ends = (keys(path[start:]) for start in range(len(path)))
        beside = any(shapes.get(end) == jnp.shape(x) for end in ends)
        return spec(path, jnp.ndim(x)) if beside else PartitionSpec()

    return jax.tree.map_with_path(of, tree)


@partial(jax.jit, static_argnames="dtype")
def as_sampled(params: Params, dtype: str) -> Params:
    """As every token reads them: layers one by one, matrices in the dtype of activations.

    A decoding loop would cut its layers out, and turn the matrices into it, at every turn.
    """

    def of(path: tuple, x: Array) -> Array:
        return jnp.asarray(x, dtype) if is_wider(path, x, dtype) else x

    params = jax.tree.map_with_path(of, params)
    layers = params["layers"]
    count = len(jax.tree.leaves(layers)[0])
    single = tuple(jax.tree.map(lambda x_L, i=i: x_L[i], layers) for i in range(count))
    return params | {"layers": single}


def changed_for_sampling(params: Params, dtype: str) -> frozenset[str]:
    """The names of what `as_sampled` changes: the rest can be the very same arrays."""
    wider = jax.tree.map_with_path(lambda path, x: is_wider(path, x, dtype), params)
    return frozenset({name for name in params if any(jax.tree.leaves(wider[name]))} | {"layers"})


def is_wider(path: tuple, x: Any, dtype: str) -> bool:
    """Whether it is a matrix of more bytes than activations have."""
    return "width" in declared(path).axes and x.dtype.itemsize > jnp.dtype(dtype).itemsize


def keys(path: tuple) -> str:
    return jax.tree_util.keystr(path)


# Within a function that runs on each device by itself (`Mesh.on_rows`).


def gathering() -> bool:
    """Whether devices hold parts of parameters, and so must gather them in step."""
    mesh = jax.sharding.get_abstract_mesh()
    return "fsdp" in mesh.manual_axes and mesh.shape["fsdp"] > 1


def gather(params: Params, dtype: Any) -> Params:
    """Parameters of which this device has its part along `fsdp`, gathered in this dtype.

    Not those of stacked layers: each is gathered when it runs (and then has no `layers` in front).
    """
    if not gathering():
        return params

    def of(path: tuple, x: Array) -> Array:
        divided = tuple(spec(path, x.ndim, ("fsdp",)))
        if "layers" in keys(path) or "fsdp" not in divided:
            return x
        place = spec(path, x.ndim, ("tp",))
        axis = divided.index("fsdp")
        return checkpoint_name(all_gathered(x, axis, jnp.dtype(dtype), place), GATHERED)

    return jax.tree.map_with_path(of, params)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def all_gathered(x: Array, axis: int, dtype: Any, place: PartitionSpec) -> Array:
    """Gathered in the dtype of activations; gradients are added up in that of the parameter.

    Args:
      place: how the parameter lies along `tp`, and stays.
    """

    def gathered(x: Array) -> Array:
        return jax.lax.all_gather(jnp.asarray(x).astype(dtype), "fsdp", axis=axis, tiled=True)

    return along_tp(gathered, place)(x)


def gathered_forward(x: Array, axis: int, dtype: Any, place: PartitionSpec) -> tuple[Array, Any]:
    return all_gathered(x, axis, dtype, place), jnp.zeros((), x.dtype)


def gathered_backward(
    axis: int, dtype: Any, place: PartitionSpec, like: Array, dy: Array
) -> tuple[Array]:
    def scattered(dy: Array) -> Array:
        dy = jnp.asarray(dy).astype(like.dtype)
        return jax.lax.psum_scatter(dy, "fsdp", scatter_dimension=axis, tiled=True)

    return (along_tp(scattered, place)(dy),)


all_gathered.defvjp(gathered_forward, gathered_backward)


def along_tp(function: Callable[[Array], Array], place: PartitionSpec) -> Callable[[Array], Array]:
    """The function of each device's part along `tp`.

    The compiler, which divides all else along `tp`, would gather what meets a collective of another
    axis, and then each device had whole parameters.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("tp", 1) == 1 or "tp" in mesh.manual_axes:
        return function
    return jax.shard_map(
        function, in_specs=place, out_specs=place, axis_names={"tp"}, check_vma=False
    )


def in_step(count: Array) -> Array:
    """The largest of the devices that gather together: none may stop before the others."""
    return jax.lax.pmax(count, "fsdp") if gathering() else count
