"""The shapes of what one device has, along `tp`: its decoder, parameters and cache."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from rl4p.base.types import Params
from rl4p.distributed.partition import specs
from rl4p.model.decoder import Decoder
from rl4p.tools.planning.abstract import AbstractRun


def decoder_of_device(run: AbstractRun) -> Decoder:
    """Returns the decoder with the heads, feed-forward or experts, and vocabulary of one device."""
    decoder, tp = run.policy.decoder, run.mesh.devices.shape["tp"]
    c = decoder.config
    own = replace(
        c,
        vocabulary=c.vocabulary // tp,
        heads=c.heads // tp,
        num_kv_heads=c.num_kv_heads // tp,
        feed_forward_width=c.feed_forward_width if c.experts else c.feed_forward_width // tp,
        experts=c.experts // tp,
        chosen_experts=min(c.chosen_experts, c.experts // tp),
    )
    return replace(decoder, config=own, attention="xla")


def bytes_of_token(run: AbstractRun) -> int:
    """Returns the bytes of a token's keys and values in the cache of a device."""
    decoder, mesh = run.policy.decoder, run.policy.sampling_mesh
    c, tp = decoder.config, mesh.devices.shape["tp"]
    numbers = 2 * c.layers * c.num_kv_heads * c.head_width // tp
    return numbers * itemsize(decoder)


def itemsize(decoder: Decoder) -> int:
    return jnp.dtype(decoder.dtype).itemsize


def bytes_in(tree: Any) -> int:
    """Returns the bytes of whole arrays."""
    return sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))


def shape_of(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def local(run: AbstractRun, params: Params) -> Params:
    """Returns parameters as a device uses them: divided along `tp`, gathered along `fsdp`.

    A router has the columns of the device's own experts, for `decoder_of_device`.
    """
    devices = run.mesh.devices

    def of(path: tuple, x: Any, spec: Any) -> jax.ShapeDtypeStruct:
        shape = NamedSharding(devices, spec).shard_shape(x.shape)
        if "router" in jax.tree_util.keystr(path):
            shape = *shape[:-1], shape[-1] // devices.shape["tp"]
        return shape_of(shape, x.dtype)

    return jax.tree.map_with_path(of, params, specs(params, ("tp",)))


def numbers_in_4_bits(params: Params) -> int:
    """Returns how many numbers kernels hold in 4 bits, two in a byte."""
    return sum(2 * x.size for x in jax.tree.leaves(params) if x.dtype == jnp.uint8)


def gathered(run: AbstractRun) -> Params:
    return local(run, run.merged())


def first_layers(params: Params, count: int) -> Params:
    """Returns the shapes of parameters with the first layers only."""
    if "layers" not in params:
        return params
    layers = jax.tree.map(lambda x: x.update(shape=(count, *x.shape[1:])), params["layers"])
    return params | {"layers": layers}
