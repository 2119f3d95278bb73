"""Heads of a decoder other than the token head: a classifier's scores and a critic's values."""

import jax.numpy as jnp

from rl4p.base.types import Array, Params, Trajectories
from rl4p.distributed import collectives


def scores(params: Params, hidden: Array) -> Array:
    """Returns scores h S^T, float32 [..., labels], of a decoder with `labels`."""
    return jnp.einsum(
        "...D,ND->...N",
        hidden,
        params["score"].astype(hidden.dtype),
        preferred_element_type=jnp.float32,
    )


def at_last_token(scores_BT: Array, trajectories: Trajectories, pad_id: int) -> Array:
    """Returns the score at the last token of each row, on all its columns: [B, T].

    Transformers reads the score of a classifier there: at the last token that is not the pad token.
    If the pad token also ends messages, that is the token before the end.
    """
    real_BT = (trajectories.segment_ids_BT != 0) & (trajectories.tokens_BT != pad_id)
    columns = jnp.arange(scores_BT.shape[1])
    last_B1 = jnp.max(jnp.where(real_BT, columns, 0), axis=1, keepdims=True)
    return jnp.broadcast_to(jnp.take_along_axis(scores_BT, last_B1, axis=1), scores_BT.shape)


def init_value_head(width: int) -> Params:
    """Returns float32 parameters to store under `value`; all estimates start at 0."""
    return {"kernel": jnp.zeros(width), "bias": jnp.zeros(())}


def values(params: Params, hidden_BTD: Array) -> Array:
    """Returns a critic's estimates of the return, aligned with `token_logprobs`.

        V_t = h_{t-1} w + b

    Returns:
      float32 [B, T]. Column t is the value of the state in which token t is chosen. The first
      column has no earlier token and is 0. Use the values on the response mask only.
    """
    head = params["value"]
    kernel_D, bias = (head[name].astype(jnp.float32) for name in ("kernel", "bias"))
    before_BTD = collectives.predicting(hidden_BTD).astype(jnp.float32)
    return collectives.shift_to_targets(jnp.einsum("BTD,D->BT", before_BTD, kernel_D) + bias)
