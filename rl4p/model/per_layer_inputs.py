"""The inputs that each layer has of its own, from the tokens (Gemma 3n, Gemma 4).

    p_l = (norm(x_0 W_l / sqrt(D)) + sqrt(P) E_l[token]) / sqrt(2)      of width P, for layer l
    x  <- x + norm((act(x G) * p_l) O)                                  at the end of layer l

x_0 are the embeddings of the tokens. The norm of p has one weight for all layers. Gemma 4 has 256
inputs for each of 35 layers.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Params
from rl4p.model.decoder_config import DecoderConfig
from rl4p.model.products import product
from rl4p.model.vocabulary import rows_of_table


def fresh_inputs(c: DecoderConfig, key: Array) -> Params:
    """Returns new parameters: E and W of all layers, side by side."""
    width = c.layers * c.per_layer_width
    key_embedding, key_projection = jax.random.split(key)
    return {
        "embedding": 0.02 * jax.random.normal(key_embedding, (c.vocabulary, width)),
        "projection": {"kernel": 0.02 * jax.random.normal(key_projection, (c.width, width))},
        "norm": {"scale": jnp.ones((c.per_layer_width,))},
    }


def per_layer_inputs(
    c: DecoderConfig, params: Params, tokens_BT: Array, x_BTD: Array, norm: Any
) -> Array:
    """Returns p of all layers, [L, B, T, P].

    Args:
      x_BTD: the embeddings of the tokens.
      norm: a function of activations [..., P].
    """
    kernel = params["projection"]["kernel"].astype(x_BTD.dtype)
    projected = product(x_BTD, kernel) * c.width**-0.5
    own = rows_of_table(params["embedding"], tokens_BT).astype(x_BTD.dtype)
    own = own * jnp.asarray(c.per_layer_width**0.5, x_BTD.dtype)

    def by_layer(x: Array) -> Array:
        return x.reshape(*tokens_BT.shape, c.layers, c.per_layer_width)

    p_BTLP = (norm(by_layer(projected)) + by_layer(own)) * 2**-0.5
    return p_BTLP.transpose(2, 0, 1, 3)
