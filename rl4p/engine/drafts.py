"""Drafts of the next tokens, looked up in texts that continue in a similar way.

The look-up of n-grams is that of prompt look-up decoding (Saxena 2023, github.com/apoorvumang/
prompt-lookup-decoding): no second model, and texts of other responses to the same prompt.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl4p.base.types import Array

LONGEST_MATCH = 8  # tokens that are compared
NO_TOKEN = -1


class Texts(NamedTuple):
    """The texts in which the drafts of n slots are looked up.

    A row holds other responses, a `NO_TOKEN` after each, and then the sequence of the slot itself.

    Attributes:
      tokens_nC: int32, the texts.
      begin_n: int32, the column of the first token of the sequence itself.
    """

    tokens_nC: Array
    begin_n: Array


def look_up(tokens_nC: Array, end_n: Array, k: int) -> jax.Array:
    """Returns the k tokens that followed the longest match of each row's last tokens, int32 [n, k].

    Of several places with a match of the same length the last one counts. A match near the end is
    continued periodically. Without a match, the draft is arbitrary.

    Args:
      tokens_nC: int32, `NO_TOKEN` matches nothing.
      end_n: int32, the number of known tokens of each row.
    """
    C = tokens_nC.shape[1]
    columns_1C, end_n1 = jnp.arange(C, dtype=jnp.int32)[None], end_n[:, None]
    matches_nC = columns_1C < end_n1
    lengths_nC = jnp.zeros(tokens_nC.shape, jnp.int32)
    for i in range(1, LONGEST_MATCH + 1):
        last_n1 = jnp.take_along_axis(tokens_nC, jnp.maximum(end_n1 - i, 0), axis=1)
        before_nC = jnp.pad(tokens_nC, ((0, 0), (i, 0)), constant_values=NO_TOKEN)[:, :C]
        matches_nC &= (before_nC == last_n1) & (last_n1 != NO_TOKEN)
        lengths_nC += matches_nC.astype(jnp.int32)
    best_n1 = jnp.max(lengths_nC * C + columns_1C, axis=1, keepdims=True) % C
    best_n1 = jnp.clip(best_n1, 0, jnp.maximum(end_n1 - 1, 0))
    period_n1 = jnp.maximum(end_n1 - best_n1, 1)
    columns_nk = best_n1 + jnp.arange(k, dtype=jnp.int32)[None] % period_n1
    return jnp.maximum(jnp.take_along_axis(tokens_nC, columns_nk, axis=1), 0)


def put(rows_nC: Array, new_nT: Array, column_n: Array) -> Array:
    """Writes new values to each row, from the row's own column on; none outside the row.

    It selects, since a TPU makes a loop over the rows of a scatter.
    """
    columns_1C = jnp.arange(rows_nC.shape[1], dtype=jnp.int32)[None]
    for t in range(new_nT.shape[1]):
        here_nC = columns_1C == column_n[:, None] + t
        rows_nC = jnp.where(here_nC, new_nT[:, t, None], rows_nC)
    return rows_nC


PLACES, BETWEEN = 4, 4  # of a text where `agreement` looks drafts up, and the tokens between them


@partial(jax.jit, static_argnames="k")
def agreement(tokens_nC: Array, first_n: Array, end_n: Array, k: int) -> jax.Array:
    """Returns at how many places of texts 1, 2, ... k + 1 tokens would have been accepted.

    Args:
      first_n, end_n: the columns of the first of the tokens that count, and behind the last.

    Returns:
      int32 [k + 1]: k drafted tokens that all agree are k + 1 accepted ones.
    """
    counts_T = jnp.zeros(k + 1, jnp.int32)
    columns_1k = jnp.arange(k, dtype=jnp.int32)[None]
    for place in range(PLACES):
        at_n = end_n - k - place * BETWEEN
        counts_n = at_n >= first_n
        at_n1 = jnp.maximum(at_n, 0)[:, None]
        draft_nk = look_up(tokens_nC, at_n1[:, 0], k)
        agrees_nk = draft_nk == jnp.take_along_axis(tokens_nC, at_n1 + columns_1k, axis=1)
        accepted_n1 = jnp.sum(jnp.cumprod(agrees_nk.astype(jnp.int32), axis=1), axis=1)[:, None]
        one_nT = accepted_n1 == jnp.arange(k + 1, dtype=jnp.int32)[None]
        counts_T += jnp.sum(one_nT & counts_n[:, None], axis=0, dtype=jnp.int32)
    return counts_T
