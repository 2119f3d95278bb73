"""The axes of all parameters, and their sharding: from the names of the axes to axes of the mesh.

Sharding, weight decay and the choice of parameters for matrix optimizers are derived from one
table. A parameter that is not in the table is an error, so that it is never silently replicated or
left undecayed. A critic of your own adds its parameters to `DECLARED` in its own module.

A parameter sharded along `fsdp` is gathered where it is used, and its gradient is reduce-scattered
to the shards. The devices of `cp` divide the shards further, in the same way: their gradients, of
different columns (`collectives.py`), must be summed anyway. A parameter sharded along `tp` stays
sharded: the compiler sums the partial results of matrix products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jax.tree_util import keystr

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params

ADAPTERS = ("lora_a", "lora_b")  # siblings of the kernel that they adapt
PACKED = ("codes", "scales")  # of a kernel in 4 bits (`rl4p.model.quantization`)


@dataclass(frozen=True)
class Parameter:
    """The properties of a parameter, which is identified by the end of its path."""

    # The names of its last axes (`partition.RULES`); None for an axis that is never sharded.
    # Leading axes, such as the axis of stacked layers, are never sharded.
    axes: tuple[str | None, ...]
    # Whether it is a matrix or a stack of matrices; only matrices have weight decay.
    matrix: bool = True
    # Whether it is a matrix that maps neither from nor to the vocabulary or labels; Muon takes only
    # these.
    inner: bool = True
    narrowed: bool = True  # whether it may be held in the dtype of activations where it is used
    # Whether it is a constant in training. It is always float32, also in files.
    frozen: bool = False


def vector(*axes: str | None) -> Parameter:
    return Parameter(axes, matrix=False, inner=False)


def constant(*axes: str | None) -> Parameter:
    return Parameter(axes, matrix=False, inner=False, narrowed=False, frozen=True)


DECLARED: dict[str, Parameter] = {
    "embedding": Parameter(("vocabulary", "width"), inner=False),
    "head": Parameter(("vocabulary", "width"), inner=False),
    "score": Parameter((None, None), inner=False),
    "scale": vector(),
    "query/kernel": Parameter(("width", "heads")),
    "key/kernel": Parameter(("width", "num_kv_heads")),
    "value/kernel": Parameter(("width", "num_kv_heads")),
    "output/kernel": Parameter(("heads", "width")),
    "query_down/kernel": Parameter(("width", None)),
    "query_up/kernel": Parameter(("query_rank", "heads")),
    "key_value_down/kernel": Parameter(("width", None)),
    "key_value_up/kernel": Parameter(("rank", "heads")),
    "query_down/bias": vector(None),
    "key_value_down/bias": vector(None),
    "query/bias": vector("heads"),
    "key/bias": vector("num_kv_heads"),
    "value/bias": vector("num_kv_heads"),
    "output/bias": vector(),
    "attention_gate/kernel": Parameter(("width", "heads")),
    "attention_gate/bias": vector("heads"),
    "sinks": vector("heads"),
    "per_layer/embedding": Parameter(("vocabulary", "per_layer"), inner=False),
    "per_layer/projection/kernel": Parameter((None, "per_layer")),
    "input_gate/kernel": Parameter(("width", None)),
    "input_output/kernel": Parameter((None, "width")),
    "multiplier": constant(None),
    "gate/kernel": Parameter(("width", "feed_forward")),
    "up/kernel": Parameter(("width", "feed_forward")),
    "down/kernel": Parameter(("feed_forward", "width")),
    "gate/bias": vector("feed_forward"),
    "up/bias": vector("feed_forward"),
    "down/bias": vector(),
    **dict.fromkeys(("xielu/positive", "xielu/negative"), vector(None)),
    **dict.fromkeys(("xielu/slope", "xielu/edge"), constant(None)),
    "experts/router": Parameter((None, None)),
    "experts/gate": Parameter(("experts", "width", None)),
    "experts/up": Parameter(("experts", "width", None)),
    "experts/down": Parameter(("experts", None, "width")),
    "experts_input/kernel": Parameter(("width", None)),
    "experts_output/kernel": Parameter((None, "width")),
    "experts/router_bias": vector(None),
    "experts/router_factor": vector(None),
    "experts/router_correction": constant(None, None),
    "experts/gate_bias": vector("experts", None),
    "experts/up_bias": vector("experts", None),
    "experts/down_bias": vector("experts", None),
    "shared/weight": Parameter((None, None), inner=False),
    # Queries and keys belong to groups of heads, which may be fewer than the devices.
    **dict.fromkeys(("mamba/query/kernel", "mamba/key/kernel"), Parameter(("width", None))),
    **{
        f"{name}/kernel": Parameter(("width", "state_heads"))
        for name in (
            *("mamba/value", "mamba/gate", "mamba/step"),
            *("convolution/input_gate", "convolution/output_gate", "convolution/value"),
            *("delta/query", "delta/key", "delta/value"),
            *("delta/gate", "delta/strength", "delta/step"),
        )
    },
    **dict.fromkeys(
        ("mamba/output/kernel", "convolution/output/kernel", "delta/output/kernel"),
        Parameter(("state_heads", "width")),
    ),
    **dict.fromkeys(("mamba/query_convolution", "mamba/key_convolution"), vector(None, None, None)),
    **dict.fromkeys(
        (
            *("mamba/value_convolution", "convolution/convolution"),
            *(f"delta/{name}_convolution" for name in ("query", "key", "value")),
        ),
        vector("state_heads", None, None),
    ),
    **{
        name: vector("state_heads")
        for name in (
            *("mamba/value/bias", "mamba/gate/bias", "mamba/step/bias", "mamba/value_bias"),
            *("mamba/step_bias", "mamba/decay", "mamba/skip", "mamba/scale"),
            *("convolution/input_gate/bias", "convolution/output_gate/bias"),
            *("convolution/value/bias", "convolution/convolution_bias"),
            *("delta/step_bias", "delta/decay"),
        )
    },
    **{
        name: vector()
        for name in (
            *("mamba/query/bias", "mamba/key/bias", "mamba/query_bias", "mamba/key_bias"),
            *("mamba/output/bias", "convolution/output/bias"),
        )
    },
}


def declared(path: tuple[Any, ...]) -> Parameter:
    """Returns the declaration of the parameter at a path; raises InputError if there is none."""
    *parents, name = ["", *names(path)]
    if name in PACKED and (kernel := longest_match(parents)):
        return Parameter(kernel.axes, narrowed=False)
    if name in ADAPTERS and (kernel := longest_match([*parents, "kernel"])):
        into, out = kernel.axes
        return Parameter((into, None) if name == "lora_a" else (None, out))
    parameter = longest_match([*parents, name])
    if parameter is None:
        raise InputError(
            f"The parameter {'/'.join(names(path))} has no declared axes: add it to "
            "rl4p.distributed.partition.DECLARED where it is defined."
        )
    return parameter


def longest_match(names: list[str]) -> Parameter | None:
    """Returns the declaration of the longest end of a path that has one: up to three names."""
    ends = ("/".join(names[-count:]) for count in (3, 2, 1))
    return next((DECLARED[end] for end in ends if end in DECLARED), None)


def names(path: tuple[Any, ...]) -> list[str]:
    """Returns the keys of a path as strings."""
    return [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]


GATHERED = "gathered parameters"  # a backward pass gathers them again, even if it keeps all else

# From the name of a parameter's axis to the axis of the mesh that divides it.
RULES = {
    "width": "fsdp",  # every large parameter has this axis once
    "vocabulary": "tp",  # shards the logits: a softmax reduces two numbers per token
    "per_layer": "fsdp",  # of all layers, where their own inputs have no width
    "rank": "fsdp",  # of latent attention, in place of the width
    "query_rank": "fsdp",
    "heads": "tp",  # the attention of one head needs no other head
    "num_kv_heads": "tp",  # on the devices of the query heads that use them
    "state_heads": "tp",  # or channels: the state of one needs no other
    "feed_forward": "tp",  # elementwise between two matrix products: one sum per layer
    "experts": "tp",  # whole experts, whose results are summed: one sum per layer
}


def spec(path: tuple, ndim: int, axes: tuple[str, ...] = ("fsdp", "tp")) -> PartitionSpec:
    """Returns the partition spec of the parameter at `path` over these axes of the mesh.

    `cp`, where it is one of the axes, divides what `fsdp` divides.
    Leading axes that the table does not name, such as the axis of stacked layers, are not divided.
    """
    named = declared(path).axes if ndim else ()  # trees of parameters may hold scalars too
    front = ndim - len(named)
    if front < 0:
        return PartitionSpec()
    mesh_axes = (RULES.get(name or "") for name in named)
    divided = [axis if axis in axes else None for axis in mesh_axes]
    if len(set(filter(None, divided))) < len([axis for axis in divided if axis]):
        raise ValueError(f"{keystr(path)}: {named} would be divided as {divided}, one axis twice.")
    if "cp" in axes:
        divided = [("fsdp", "cp") if axis == "fsdp" else axis for axis in divided]
    return PartitionSpec(*[None] * front, *divided) if any(divided) else PartitionSpec()


def specs(tree: Any, axes: tuple[str, ...] = ("fsdp", "tp")) -> Any:
    """Returns the `spec` of each leaf of a tree of parameters, which may hold scalars too."""
    return jax.tree.map_with_path(lambda path, x: spec(path, jnp.ndim(x), axes), tree)


def specs_beside(tree: Any, params: Params, axes: tuple[str, ...] = ("fsdp", "tp")) -> Any:
    """Returns the specs of an optimizer's state.

    A leaf with the name and shape of a parameter is sharded as it. A leaf whose shape differs in
    the last dimension only (the scales of blocks) is sharded along the others. All other leaves are
    replicated.
    """
    shapes = {keystr(path): jnp.shape(x) for path, x in jax.tree.leaves_with_path(params)}

    def leaf_spec(path: tuple, x: Any) -> PartitionSpec:
        ends = (keystr(path[start:]) for start in range(len(path)))
        shape = next((shapes[end] for end in ends if end in shapes), ())
        if len(shape) != jnp.ndim(x) or shape[:-1] != jnp.shape(x)[:-1]:
            return PartitionSpec()
        beside = spec(path, jnp.ndim(x), axes)
        if shape == jnp.shape(x):
            return beside
        return PartitionSpec(*beside[:-1]) if any(beside[:-1]) else PartitionSpec()

    return jax.tree.map_with_path(leaf_spec, tree)


def sampling_specs(tree: Any, product_axes: tuple[str, ...], head_axes: tuple[str, ...]) -> Any:
    """Returns the spec of each leaf while sampling, by `Mesh.product_axes` and `Mesh.head_axes`.

    KV heads, and heads with a state, are divided along `tp` alone.
    """

    def leaf_spec(path: tuple, x: Any) -> PartitionSpec:
        along_tp = spec(path, jnp.ndim(x), ("tp",))
        if not any(along_tp):
            return along_tp
        axes = {"num_kv_heads": "tp", "state_heads": "tp", "heads": head_axes}
        named = (None,) * jnp.ndim(x) + declared(path).axes
        pairs = zip(along_tp, named[-jnp.ndim(x) :], strict=True)
        return PartitionSpec(*(axis and axes.get(name or "", product_axes) for axis, name in pairs))

    return jax.tree.map_with_path(leaf_spec, tree)


@partial(jax.jit, static_argnames=("dtype", "places"))
def for_decoding(params: Params, dtype: str, places: Any = None) -> Params:
    """Returns parameters for sampling: one tree per layer, and matrices in the activations' dtype.

    Otherwise the decoding loop would slice the stacked layers and cast them at every decode step.

    Args:
      places: where the parameters of each layer are stacked (`model.pattern.places`); None if all
        layers have the same ones.
    """
    params = jax.tree.map_with_path(
        lambda path, x: jnp.asarray(x, decoding_dtype(path, x, dtype)), params
    )
    layers = params["layers"]
    if places is None:
        (count,) = {len(x) for x in jax.tree.leaves(layers)}
        places = [[(name, i) for name in layers] for i in range(count)]
    single = tuple(
        {name: jax.tree.map(lambda x_L, i=i: x_L[i], layers[name]) for name, i in own}
        for own in places
    )
    return params | {"layers": single}


def changed_for_decoding(params: Params, dtype: str) -> frozenset[str]:
    """Returns the top-level names that `for_decoding` changes; it can share all other arrays."""
    changed = jax.tree.map_with_path(
        lambda path, x: decoding_dtype(path, x, dtype) != x.dtype, params
    )
    return frozenset({name for name in params if any(jax.tree.leaves(changed[name]))} | {"layers"})


def decoding_dtype(path: tuple, x: Any, dtype: str) -> jnp.dtype:
    """Returns the dtype of a parameter for sampling: at most `dtype` for a matrix, else its own."""
    parameter = declared(path)
    large = any(RULES.get(axis or "") == "fsdp" for axis in parameter.axes)
    narrowed = parameter.narrowed and large
    wider = narrowed and x.dtype.itemsize > jnp.dtype(dtype).itemsize
    return jnp.dtype(dtype) if wider else x.dtype


def is_constant(path: tuple, x: Any) -> bool:
    """Returns whether training changes no parameter at this path; trees may hold scalars too."""
    return bool(jnp.ndim(x)) and declared(path).frozen


def is_correction(path: tuple) -> bool:
    """Returns whether the parameter at a path is the biases of a choice of experts (`Router`)."""
    return names(path)[-2:] == ["experts", "router_correction"]


def held_dtype(path: tuple, dtype: Any) -> jnp.dtype:
    """Returns the dtype of a parameter in memory and in files, where the others have `dtype`."""
    return jnp.dtype("float32" if declared(path).frozen else dtype)


def narrowed(params: Params, dtype: str) -> Params:
    """Returns copies of parameters that are only read, with matrices in the dtype of activations.

    Every product would cast them to it, so the results are the same.
    """
    return jax.tree.map_with_path(
        lambda path, x: jnp.array(x, decoding_dtype(path, x, dtype)), params
    )


# Within a function that `collectives.on_rows` runs on each device.


def gathered_axes() -> tuple[str, ...]:
    """Returns the axes, `fsdp` and `cp`, along which devices gather parameters here, in step."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = ("fsdp", "cp")
    return tuple(axis for axis in axes if axis in mesh.manual_axes and mesh.shape[axis] > 1)


def gather(params: Params, dtype: Any) -> Params:
    """Gathers this device's shards of the parameters along `fsdp` and `cp`, in the given dtype.

    Skips stacked layers: each layer is gathered when it runs, without `layers` in its path.
    """
    if not gathered_axes():
        return params

    def gathered(path: tuple, x: Array) -> Array:
        divided = tuple(spec(path, x.ndim, ("fsdp",)))
        if "layers" in keystr(path) or "fsdp" not in divided:
            return x
        place = spec(path, x.ndim, ("tp",))
        axis, own = divided.index("fsdp"), x.dtype if not declared(path).narrowed else dtype
        return checkpoint_name(all_gathered(x, axis, jnp.dtype(own), place), GATHERED)

    return jax.tree.map_with_path(gathered, params)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def all_gathered(x: Array, axis: int, dtype: Any, place: PartitionSpec) -> Array:
    """Gathers a shard in `dtype`, divided along `tp` at `place`.

    The gradient is summed in the dtype of the parameter.
    """
    gather = partial(jax.lax.all_gather, axis_name=gathered_axes(), axis=axis, tiled=True)
    return along_tp(lambda x: gather(jnp.asarray(x).astype(dtype)), place)(x)


def gathered_backward(
    axis: int, dtype: Any, place: PartitionSpec, like: Array, dy: Array
) -> tuple[Array]:
    # Where `fsdp` spans several dimensions of a TPU's wiring (v5p 2x2x2, v5e 4x4), the compiler
    # makes an all-reduce and a slice of this. Reduce-scatters along one dimension after another
    # compile as such and send half the bytes, but over the links of one dimension at a time, where
    # the all-reduce uses all: on v5p 7/8 of the array over one link, against 14/8 over three.
    options = {"axis_name": gathered_axes(), "scatter_dimension": axis, "tiled": True}
    scatter = partial(jax.lax.psum_scatter, **options)
    return (along_tp(lambda dy: scatter(jnp.asarray(dy).astype(like.dtype)), place)(dy),)


# The scalar carries the dtype of the parameter: a residual must be an array, not a dtype.
all_gathered.defvjp(
    lambda x, *static: (all_gathered(x, *static), jnp.zeros((), x.dtype)), gathered_backward
)


def along_tp(function: Callable[[Array], Array], place: PartitionSpec) -> Callable[[Array], Array]:
    """Returns the function mapped over each device's shard along `tp`.

    Left to the compiler, a collective of another axis would first gather its argument along `tp`,
    and each device would then hold the full parameters.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("tp", 1) == 1 or "tp" in mesh.manual_axes:
        return function
    return jax.shard_map(
        function, in_specs=place, out_specs=place, axis_names={"tp"}, check_vma=False
    )


def in_step(count: Array) -> Array:
    """Returns the largest count of the devices that gather together, so that none stops early."""
    return jax.lax.pmax(count, "fsdp") if gathered_axes() else count
