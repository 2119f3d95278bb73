"""AdamW with moments in 8 bits."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl4p.base.types import Array, Params
from rl4p.configuration.bounds import AboveZero, NonNegative, Share
from rl4p.learner.optimizer import OptimizerOptions, is_matrix

SMALLEST_BLOCK, LARGEST_BLOCK = 32, 256


@dataclass(frozen=True, kw_only=True)
class AdamW8Bit(OptimizerOptions):
    """AdamW (`optimizer.AdamW`) that keeps the moments of matrices in blocks of 8-bit codes c:

        mu = scale x sign(c) (c / 127)^2,   nu = scale x (c / 255)^4

    A block is a part of a row, of 32 to 256 numbers. Its scale is the largest of them, in float32
    (2110.02861). The powers give small numbers finer codes. Vectors, and matrices whose rows do not
    divide into such blocks, keep float32.

    An update changes nu by less than the distance of two codes. Each number is therefore rounded up
    in some updates and down in the others, so that its mean over the updates is right. The number
    of the update and the position decide, so a run can be repeated exactly. A nu above 0 is never
    rounded to 0, because only epsilon would then limit the direction.
    """

    learning_rate: NonNegative = 5e-5
    b1: Share = 0.9
    b2: Share = 0.999
    epsilon: AboveZero = 1e-8

    def transform(self) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(self.b1, self.b2, self.epsilon)

        def init(params: Params) -> optax.ScaleByAdamState:
            return packed(adam.init(params))

        def update(gradient: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
            direction, state = adam.update(gradient, unpacked(state), params)
            return direction, packed(state)

        return self.descent(optax.GradientTransformation(init, update))  # type: ignore[arg-type]


class Code(NamedTuple):
    """A code of 8 bits: the number scale x sign(c) (|c| / largest)^power."""

    dtype: Any
    largest: int
    power: int


FIRST_MOMENT, SECOND_MOMENT = Code(jnp.int8, 127, 2), Code(jnp.uint8, 255, 4)


class Packed(NamedTuple):
    """A moment.

    Attributes:
      codes: in the shapes of the parameters; float32 numbers where a parameter has no blocks.
      scales: float32 [..., blocks of a row]; None where a parameter has no blocks.
    """

    codes: Params
    scales: Any


def packed(state: Any) -> Any:
    """Returns a state of Adam with both moments in codes."""
    moments = []
    for tree, code in ((state.mu, FIRST_MOMENT), (state.nu, SECOND_MOMENT)):
        leaves, treedef = jax.tree.flatten(tree)
        matrices = jax.tree.leaves(is_matrix(tree))
        pairs = [
            encoded(x, code, state.count) if matrix and block_of(x) else (jnp.float32(x), None)
            for x, matrix in zip(leaves, matrices, strict=True)
        ]
        moments.append(Packed(*map(treedef.unflatten, zip(*pairs, strict=True))))
    return state._replace(mu=moments[0], nu=moments[1])


def unpacked(state: Any) -> Any:
    """Returns a state of Adam with both moments in float32."""
    moments = []
    for packed, code in ((state.mu, FIRST_MOMENT), (state.nu, SECOND_MOMENT)):
        codes, treedef = jax.tree.flatten(packed.codes)
        pairs = zip(codes, treedef.flatten_up_to(packed.scales), strict=True)
        numbers = [x if s is None else decoded(x, s, code) for x, s in pairs]
        moments.append(treedef.unflatten(numbers))
    return state._replace(mu=moments[0], nu=moments[1])


def block_of(x: Array) -> int | None:
    """Returns the largest block that divides the rows of a matrix, or None."""
    sizes = range(LARGEST_BLOCK, SMALLEST_BLOCK - 1, -1)
    return next((size for size in sizes if x.shape[-1] % size == 0), None)


def encoded(x: Array, code: Code, count: Array) -> tuple[Array, Array]:
    """Returns the codes of a matrix, [..., n], and the scales of its blocks, float32."""
    blocks = jnp.float32(x).reshape(*x.shape[:-1], -1, block_of(x))
    scale = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    share = jnp.abs(blocks) / jnp.where(scale > 0, scale, 1.0)
    below = jnp.minimum(jnp.floor(code.largest * share ** (1 / code.power)), code.largest - 1)
    low, high = ((c / code.largest) ** code.power for c in (below, below + 1))
    up = uniform(x.shape, count).reshape(blocks.shape) < (share - low) / (high - low)
    codes = jnp.where(up, below + 1, below)
    if code is SECOND_MOMENT:
        codes = jnp.where(share > 0, jnp.maximum(codes, 1), 0)
    codes = jnp.sign(blocks) * codes
    return codes.astype(code.dtype).reshape(x.shape), scale[..., 0]


def decoded(codes: Array, scales: Array, code: Code) -> Array:
    """Returns the numbers of codes, float32 [..., n]."""
    blocks = codes.reshape(*scales.shape, -1).astype(jnp.float32)
    shares = jnp.sign(blocks) * (jnp.abs(blocks) / code.largest) ** code.power
    return (scales[..., None] * shares).reshape(codes.shape)


def uniform(shape: tuple[int, ...], count: Array) -> Array:
    """Returns numbers in [0, 1) for the positions of an array; over counts each is equidistributed.

    A position has a number of its own (the last step of MurmurHash3), and each count adds the
    golden ratio, modulo 1.
    """
    x = jnp.uint32(0)
    for axis, size in enumerate(shape):
        x = jnp.uint32(size) * x + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    x += count.astype(jnp.uint32) * jnp.uint32(0x9E3779B9)
    return (x >> 8).astype(jnp.float32) / 2**24
