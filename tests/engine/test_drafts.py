"""The look-up of drafts in texts."""

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.engine import drafts
from rl4p.engine.drafts import NO_TOKEN, agreement, look_up, put

C = 24


def row(*tokens):
    return [*tokens, *[7] * (C - len(tokens))]  # what is behind the end must not count


def drafted(tokens, k=4):
    return np.asarray(look_up(jnp.int32([row(*tokens)]), jnp.int32([len(tokens)]), k))[0].tolist()


@pytest.mark.parametrize(
    ("tokens", "draft"),
    [
        ((1, 2, 3, 4, 5, 6, 1, 2), [3, 4, 5, 6]),
        ((1, 2, 3, 9, 2, 4, 5, 1, 2), [3, 9, 2, 4]),  # of two tokens, although one is nearer
        ((1, 2, 3, 1, 2, 4, 8, 1, 2), [4, 8, 1, 2]),  # the later one of two that are as long
        ((1, 2, 3, 2, 3), [2, 3, 2, 3]),  # periodic
        ((6, 6, 6), [6, 6, 6, 6]),
        ((1, 2, 3, NO_TOKEN, 1, 2), [3, 0, 1, 2]),  # the text of another response ends
    ],
)
def test_a_draft_by_hand(tokens, draft):
    assert drafted(tokens) == draft


def test_a_longer_match_counts_more_up_to_the_longest(monkeypatch):
    tokens = (5, 1, 2, 3, 8, 4, 1, 2, 3, 9, 5, 1, 2, 3)
    assert drafted(tokens)[0] == 8
    monkeypatch.setattr(drafts, "LONGEST_MATCH", 3)
    assert drafted(tokens)[0] == 9


def test_what_no_token_is_matches_nothing():
    """A text that ends before the match begins does not go on before it."""
    assert drafted((1, 2, 9, NO_TOKEN, 2, 4, 8, NO_TOKEN, 2))[:2] == [4, 8]


def test_rows_have_their_own_ends():
    tokens_nC = jnp.int32([row(1, 2, 3, 1), row(4, 5, 6, 8, 5), row()])
    draft_nk = look_up(tokens_nC, jnp.int32([4, 5, 0]), 2)
    assert draft_nk[:2].tolist() == [[2, 3], [6, 8]]
    assert draft_nk.shape == (3, 2)


def test_values_are_put_in_the_columns_of_each_row_and_not_outside():
    rows_nC = put(jnp.zeros((3, 4), jnp.int32), jnp.int32([[1, 2]] * 3), jnp.int32([0, 2, 3]))
    assert rows_nC.tolist() == [[1, 2, 0, 0], [0, 0, 1, 2], [0, 0, 0, 1]]


def test_agreement_counts_the_tokens_that_drafts_would_have_given():
    """Four places in each row, at 0, 4, 8 and 12 tokens before the last two."""
    period, counting = [1, 2, 3] * 7, list(range(21))
    tokens_nC = jnp.int32([period + [0] * 3, counting + [0] * 3])
    ends_n = jnp.int32([21, 21])
    assert agreement(tokens_nC, jnp.int32([0, 21]), ends_n, 2).tolist() == [0, 0, 4]
    assert agreement(tokens_nC, jnp.int32([21, 0]), ends_n, 2).tolist() == [4, 0, 0]
    # Only places whose tokens are all from column 12 on: 19 and 15.
    assert agreement(tokens_nC, jnp.int32([12, 21]), ends_n, 2).tolist() == [0, 0, 2]
    half = [1, 2, 3, 4, 5, 6, 1, 2, 3, 9, 9]
    places = agreement(jnp.int32([half]), jnp.int32([6]), jnp.int32([10]), 2)
    assert places.tolist() == [0, 1, 0]
