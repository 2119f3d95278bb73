"""The matrices from and to the vocabulary, whose gradients are added up in float32.

Both gradients are sums over all tokens. In bfloat16 such a sum loses ten times as much as one
rounding of the result does.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.model import exact_sums

float32_product = partial(jax.lax.dot_general, preferred_element_type=jnp.float32)


class Head(NamedTuple):
    """The matrix that maps activations to logits.

    Attributes:
      narrow_VD: in the dtype of the activations; products read it.
      exact_VD: in float32; it gets the gradient, and no product reads it.
    """

    narrow_VD: Array
    exact_VD: Array


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def head_product(
    hidden: Array, narrow_VD: Array, exact_VD: Array, exact: bool = False
) -> jax.Array:
    """Returns float32 logits [..., V] of activations [..., D]; `exact` is that of `product`."""
    if exact:
        return exact_sums.product(hidden, narrow_VD.T, "float32")
    over_width = (((hidden.ndim - 1,), (1,)), ((), ()))
    return float32_product(hidden, narrow_VD, over_width)


def head_product_backward(
    exact: bool, saved: tuple[Array, Array], dy: Array
) -> tuple[jax.Array, None, jax.Array]:
    hidden, narrow_VD = saved
    tokens, last = tuple(range(dy.ndim - 1)), dy.ndim - 1
    dhidden = float32_product(dy, narrow_VD, (((last,), (0,)), ((), ())))
    dhead_VD = float32_product(dy, hidden, ((tokens, tokens), ((), ())))
    return dhidden.astype(hidden.dtype), None, dhead_VD


head_product.defvjp(
    lambda hidden, narrow_VD, exact_VD, exact: (
        head_product(hidden, narrow_VD, exact_VD, exact),
        (hidden, narrow_VD),
    ),
    head_product_backward,
)


@jax.custom_vjp
def rows_of_table(table_VD: Array, tokens: Array) -> jax.Array:
    """Returns the rows [..., D] of the tokens [...]."""
    return jnp.asarray(table_VD)[tokens]


def rows_of_table_backward(saved: tuple[Array, Array], dy: Array) -> tuple[jax.Array, None]:
    tokens, empty = saved
    zeros_VD = jnp.zeros((empty.shape[0], dy.shape[-1]), jnp.float32)
    return zeros_VD.at[tokens].add(dy.astype(jnp.float32)).astype(empty.dtype), None


rows_of_table.defvjp(
    lambda table_VD, tokens: (
        rows_of_table(table_VD, tokens),
        # The empty array carries the vocabulary and the dtype of the table.
        (tokens, jnp.zeros((table_VD.shape[0], 0), table_VD.dtype)),
    ),
    rows_of_table_backward,
)
