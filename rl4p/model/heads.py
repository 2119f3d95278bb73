"""Heads on a decoder's trunk beside that of tokens: a classifier's scores, a critic's values."""

import jax.numpy as jnp

from rl4p.types import Array, Params


def scores(params: Params, hidden: Array) -> Array:
    """float32 [..., labels] from [..., D]: h S^T; of a decoder with `labels`."""
    return jnp.einsum(
        "...D,ND->...N",
        hidden,
        params["score"].astype(hidden.dtype),
        preferred_element_type=jnp.float32,
    )


def init_value_head(width: int) -> Params:
    """float32 parameters, to stand at `value` among a decoder's: every estimate starts at 0."""
    return {"kernel": jnp.zeros(width), "bias": jnp.zeros(())}


def values(params: Params, hidden_BTD: Array) -> Array:
    """Estimates of the return, aligned with `token_logprobs`.

        V_t = h_{t-1} w + b

    Returns:
      float32 [B, T], at t that of the state which token t is chosen in; the first column, before
      which nothing was read, is 0. Read it on the response mask only.
    """
    head = params["value"]
    kernel_D, bias = (head[name].astype(jnp.float32) for name in ("kernel", "bias"))
    before_BTD = hidden_BTD[:, :-1].astype(jnp.float32)
    return jnp.pad(jnp.einsum("BTD,D->BT", before_BTD, kernel_D) + bias, ((0, 0), (1, 0)))
