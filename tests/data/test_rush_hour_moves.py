from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4p.data.rush_hour_moves import (
    WORDS,
    Move,
    merged,
    strict_moves,
    tolerant_moves,
    written,
)

MOVES = st.lists(
    st.builds(Move, st.sampled_from("ABCUDLRVX"), st.sampled_from("<>^v"), st.integers(1, 5)),
    min_size=1,
    max_size=8,
)
GOLD = (Move("B", "v", 2), Move("A", ">", 1))


def cells(moves):
    """Returns the way of each piece and direction, which no notation changes."""
    return {
        (piece, direction): sum(m.cells for m in moves if m[:2] == (piece, direction))
        for piece, direction, _ in moves
    }


@given(MOVES)
def test_merging_again_changes_nothing_and_no_way_is_lost(moves):
    once = merged(moves)
    assert merged(once) == once
    assert cells(once) == cells(moves)
    assert all(a[:2] != b[:2] for a, b in pairwise(once))


def test_only_consecutive_moves_of_a_piece_in_a_direction_are_merged():
    moves = strict_moves("Bv1,Bv1,A>1,Bv1,B^1")
    assert moves is not None
    assert written(moves) == "Bv2,A>1,Bv1,B^1"


@given(MOVES)
def test_what_is_written_strictly_is_read_strictly_and_tolerantly(moves):
    assert strict_moves(written(moves)) == tolerant_moves(written(moves)) == merged(moves)


@given(MOVES, st.data())
def test_no_notation_of_a_policy_changes_the_moves(moves, data):
    text = ""
    for piece, direction, number in moves:
        word = data.draw(st.sampled_from([word for word in WORDS if WORDS[word] == direction]))
        word = data.draw(st.sampled_from([word, word.upper()]))
        inner = data.draw(st.sampled_from(["", " ", ": ", "\n"]))
        separator = data.draw(st.sampled_from(["", ",", " ; ", "\n", " then ", " - ", ". 2. "]))
        text += f"{piece}{inner}{word}{inner}{number}{separator}"
    assert tolerant_moves(text) == merged(moves)


@pytest.mark.parametrize(
    "text",
    ["", " ", "Bv2, A>1", "Bv2;A>1", "Bv2,", "bv2", "BD2", "Bv", "v2", "Bv0", "Bv2\n", "Bv1000"],
)
def test_a_reference_in_another_notation_is_none(text):
    assert strict_moves(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("Bv2A>1", "B down 2, A right 1", "1. B: v2\n2) A -> 1", "[Bv2] -> [A>1]", "BD2;AR1"),
        *("B↓2 A→1", "Bv1 Bv1 A>1", "(B V 2), then (A R 1)."),
    ],
)
def test_a_list_of_moves_in_any_notation_is_read(text):
    assert tolerant_moves(text) == GOLD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "Moving Bv2 frees A>1",  # a sentence
        "Bv2,A>1 or C>1 or D",
        "Bv2,A>-1",
        "Bv2,A>1.5",
        "Bv2,A>0",
        "Bv2,A>1000",
        "Bv2,A>",
        "Bv2 3 A>1",
        "bv2,a>1",  # a lower-case v is a direction, so letters of pieces are capitals
    ],
)
def test_what_is_no_list_of_moves_is_none(text):
    assert tolerant_moves(text) is None


@pytest.mark.parametrize("part", ["A ", "A>", "A>1 ", "1. ", "A" * 3, "9" * 50, "A:-"])
def test_a_long_text_is_read_in_linear_time(part):
    """The time of a quadratic search would be minutes, which nobody would overlook."""
    text = part * (1_000_000 // len(part))
    assert tolerant_moves(text) in (None, (Move("A", ">", len(text) // len(part)),))
    strict_moves(text)
