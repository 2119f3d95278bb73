"""Products with the matrices of a layer, and their biases."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rl4p.base.types import Array
from rl4p.model import exact_sums
from rl4p.model.quantization import NF4Kernel

INIT = nn.initializers.normal(0.02)
PRODUCT = "product of a projection"  # checkpoint policies do not see that `product` is a dot


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(x: Array, kernel_DF: Array, sums: str | None = None, exact: bool = False) -> Array:
    """Returns the product x W over the last axis of x.

    The custom derivative computes dW = x^T dy as one product over all tokens. JAX would transpose
    (dy)^T x instead, for which a CPU copies dy, and everything fused into it, transposed.

    Args:
      sums: the dtype in which this product and those of its derivative are added up before they
        are rounded to the dtype of x; None leaves it to the compiler.
      exact: whether the order of the sums depends on no other row (`exact_sums.py`); that of the
        derivative may.
    """
    if exact:
        return exact_sums.product(x, kernel_DF, sums).astype(x.dtype)
    return rounded("...D,DF->...F", x, kernel_DF, sums)


def product_backward(
    sums: str | None, exact: bool, saved: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, kernel_DF = saved
    dx = rounded("...F,DF->...D", dy, kernel_DF, sums)
    x_ND, dy_NF = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dx, rounded("ND,NF->DF", x_ND, dy_NF, sums)


product.defvjp(lambda x, W, *options: (product(x, W, *options), (x, W)), product_backward)


def rounded(axes: str, x: Array, y: Array, sums: str | None) -> Array:
    """Returns an einsum, added up in a dtype of its own and rounded once."""
    return jnp.einsum(axes, x, y, preferred_element_type=sums).astype(x.dtype)


def projected(
    x: Array, kernel_DF: Array, *_: Any, sums: str | None, exact: bool = False, **__: Any
) -> Array:
    """Returns `product`, named for checkpoint policies; it is called as `lax.dot_general` is."""
    return checkpoint_name(product(x, kernel_DF, sums, exact), PRODUCT)


class Projection(nn.Dense):
    """The projection x W + b; plus scale (x A) B if the parameters adapt W (`lora.py`)."""

    dot_general: Any = partial(projected, sums=None)
    adapter_scale: float = 0.0

    def __call__(self, inputs: Array) -> Array:
        if self.has_variable("params", "kernel") and isinstance(
            kernel := self.get_variable("params", "kernel"), NF4Kernel
        ):
            bias = self.get_variable("params", "bias") if self.use_bias else None
            y = self.dot_general(inputs.astype(self.dtype), kernel.astype(self.dtype))
            y = plus(y, None if bias is None else bias.astype(self.dtype))
        else:
            y = super().__call__(inputs)
        if not self.has_variable("params", "lora_a"):
            return y
        down, up = (
            self.get_variable("params", name).astype(self.dtype) for name in ("lora_a", "lora_b")
        )
        return y + self.adapter_scale * ((inputs.astype(self.dtype) @ down) @ up)

    def factors(self) -> list[tuple[Array, ...]]:
        """Returns matrices whose product is W, and those whose product is added to W, if any."""
        kernel = self.get_variable("params", "kernel").astype(self.dtype)
        products: list[tuple[Array, ...]] = [(kernel,)]
        if self.has_variable("params", "lora_a"):
            down, up = (self.get_variable("params", name) for name in ("lora_a", "lora_b"))
            down = self.adapter_scale * down
            products.append((down.astype(self.dtype), up.astype(self.dtype)))
        return products


def scaled(x: Array, factor: float) -> jax.Array:
    """Returns x times a factor, rounded once to the dtype of x."""
    if factor == 1:
        return jnp.asarray(x)
    return (jnp.asarray(x, jnp.float32) * factor).astype(x.dtype)


def plus(x: Array, bias: Array | None) -> jax.Array:
    """Returns x with a bias of its last axes, if there is one."""
    return jnp.asarray(x if bias is None else x + jnp.broadcast_to(bias, x.shape))
