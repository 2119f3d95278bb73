"""Tests of boards against a second implementation, which moves letters in a text."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rl4p.data.rush_hour_board import (
    WORDS,
    Move,
    StateSpace,
    board_of,
    fewest_moves,
    merged,
    play,
    solve,
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("part", ["A ", "A>", "A>1 ", "1. ", "A" * 3, "9" * 50, "A:-"])
def test_a_long_text_is_read_in_linear_time(part):
    """The time of a quadratic search would be minutes, which nobody would overlook."""
    text = part * (1_000_000 // len(part))
    assert tolerant_moves(text) in (None, (Move("A", ">", len(text) // len(part)),))
    strict_moves(text)


BOARD = "oAABCooBCoooDDoo"


def next_texts(text: str, size: int) -> set[str]:
    """Returns the boards after one move: every piece is shifted cell by cell while it fits."""
    texts_after = set()
    for name in set(text) - set("ox"):
        cells = [i for i, cell in enumerate(text) if cell == name]
        horizontal = cells[1] == cells[0] + 1
        for step in (-1, 1) if horizontal else (-size, size):
            now, current = cells, text
            while True:
                after = [i + step for i in now]
                same_row = all(i // size == cells[0] // size for i in after)
                if not all(0 <= i < size * size for i in after) or (horizontal and not same_row):
                    break
                if any(current[i] not in ("o", name) for i in after):
                    break
                letters = ["o" if cell == name else cell for cell in text]
                for i in after:
                    letters[i] = name
                now, current = after, "".join(letters)
                texts_after.add(current)
    return texts_after


def at_exit(text: str, size: int) -> bool:
    return text.rindex("A") % size == size - 1


def breadth_first(text: str, size: int) -> int | None:
    seen, frontier, moves = {text}, {text}, 0
    while frontier:
        if any(at_exit(each, size) for each in frontier):
            return moves
        frontier = {after for each in frontier for after in next_texts(each, size)} - seen
        seen |= frontier
        moves += 1
    return None


def within(text: str, size: int, moves: int) -> bool:
    """Returns whether a depth-first search finds a solution of at most so many moves."""
    if at_exit(text, size):
        return True
    return moves > 0 and any(within(each, size, moves - 1) for each in next_texts(text, size))


@st.composite
def texts(draw, size: int = 4) -> str:
    """Returns a board with up to six pieces and a wall, solvable or not."""
    cells = ["o"] * size**2

    def put(name, horizontal, length):
        line, start = draw(st.integers(0, size - 1)), draw(st.integers(0, size - length))
        first, step = (line * size + start, 1) if horizontal else (start * size + line, size)
        where = range(first, first + step * length, step)
        if all(cells[i] == "o" for i in where):
            for i in where:
                cells[i] = name

    put("A", True, 2)
    for name in "BCDEFG"[: draw(st.integers(0, 6))]:
        put(name, draw(st.booleans()), draw(st.sampled_from([2, 2, 3])))
    wall = draw(st.integers(0, size**2 - 1))
    if cells[wall] == "o" and draw(st.booleans()):
        cells[wall] = "x"
    return "".join(cells)


@settings(max_examples=200)
@given(texts())
def test_the_minimum_is_that_of_an_iterative_deepening_search(text):
    solution = solve(board_of(text))
    if solution is None:
        assert breadth_first(text, 4) is None
        return
    assume(len(solution) <= 4)  # a depth-first search of five moves takes seconds
    assert within(text, 4, len(solution))
    assert not any(within(text, 4, moves) for moves in range(len(solution)))


@settings(max_examples=100)
@given(texts(size=5))
def test_a_solution_solves_its_board_at_its_last_move(text):
    board = board_of(text)
    solution = solve(board)
    assert (solution is None) == (breadth_first(text, 5) is None)
    if solution is not None:
        last, made = play(board, solution)
        assert last.solved
        assert at_exit(str(last), 5)
        assert made == len(solution) == breadth_first(text, 5)
        assert merged(solution) == solution


@pytest.mark.slow
@settings(max_examples=100)
@given(texts())
def test_the_moves_of_a_board_are_those_that_a_shift_of_letters_allows(text):
    board = board_of(text)
    names = [piece.name for piece in board.pieces] + ["Z"]
    moves = [Move(name, way, cells) for name in names for way in "<>^v" for cells in (1, 2, 3)]
    after = {str(each) for each in map(board.after, moves) if each is not None}
    assert after == next_texts(text, 4)
    space = StateSpace(board)
    states = space.neighbours(space.start)
    assert {str(space.board_at(state)) for state in states} == after
    assert len(set(states)) == len(states) == len(after)
    for state in states:
        assert board.after(space.move(space.start, state)) == space.board_at(state)


@settings(max_examples=50)
@given(texts())
def test_the_distances_of_all_states_are_their_minima(text):
    space = StateSpace(board_of(text))
    for state, moves in list(fewest_moves(space, 10_000).items())[:50]:
        solution = solve(space.board_at(state))
        assert solution is not None
        assert len(solution) == moves


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("text", "moves", "states"),
    [  # the hardest boards of 6 x 6, with a wall and without, by an exhaustive enumeration
        ("IBBxooIooLDDJAALooJoKEEMFFKooMGGHHHM", 60, 2332),
        ("GBBoLoGHIoLMGHIAAMCCCKoMooJKDDEEJFFo", 51, 4780),
    ],
)
def test_the_known_minimum_of_a_hard_board(text, moves, states):
    board = board_of(text)
    solution = solve(board)
    assert solution is not None
    assert len(solution) == moves == breadth_first(text, 6)
    assert play(board, solution)[0].solved
    assert len(fewest_moves(StateSpace(board), states)) == states
    assert fewest_moves(StateSpace(board), states - 1) == {}


def test_a_solution_found_by_hand():
    assert solve(board_of(BOARD)) == (Move("B", "v", 1), Move("A", ">", 1))
    assert solve(board_of("ooAAoooooooooooo")) == ()
    assert solve(board_of("AAoxoooooooooooo")) is None
    assert solve(board_of("AAoBoooBoooBoooB")) is None


def test_the_game_ends_at_an_impossible_move_and_at_the_exit():
    board = board_of(BOARD)
    gold = strict_moves("Bv2,A>1,C>1")
    impossible = strict_moves("Bv2,C>1,A>1")
    assert gold is not None
    assert impossible is not None
    assert play(board, gold)[1] == 2
    last, made = play(board, impossible)
    assert (made, last.solved) == (1, False)


@pytest.mark.parametrize(
    "move",
    ["Bv3", "B^1", "B<1", "A>1", "A<2", "Av1", "Cv1", "C>1", "Dv1", "D>3", "E>1", "D<1"],
)
def test_a_piece_keeps_to_its_line_to_the_board_and_to_empty_cells(move):
    (parsed,) = strict_moves(move) or ()
    assert board_of(BOARD).after(parsed) is None


def test_a_piece_does_not_jump():
    """Only from 5 x 5 on is there room behind a piece in the way."""
    board = board_of("AABoo ooBoo ooooo ooooo ooooo")
    assert board.after(Move("A", ">", 3)) is None
    space = StateSpace(board)
    assert {space.board_at(s).pieces[0].start for s in space.neighbours(space.start)} == {0}


def test_blockers_are_counted_once_and_walls_by_the_cell():
    board = board_of("AAoBCo oooBCo ooooCo oooooo oooooo oooooo")
    assert (board.to_exit, board.blockers) == (4, 2)
    assert board_of("AAxx" + "o" * 12).blockers == 2
    assert board_of("AABB" + "o" * 12).blockers == 1


def test_a_board_is_read_over_lines_and_written_back():
    assert str(board_of("o A A B\nC o o B\nC o o o\nD D o o", 4)) == BOARD
    assert str(board_of("AAxo" + "o" * 12)) == "AAxo" + "o" * 12


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("AAo", None, "has a size|3 cells"),
        (BOARD, 5, "a board of size 5 has 25 cells"),
        ("o" * 81, None, "a size from 2 to 8"),
        ("AA1o" + "o" * 12, None, "not '1'"),
        ("BBoo" + "o" * 12, None, "no horizontal piece A"),
        ("AoooAooo" + "o" * 8, None, "no horizontal piece A"),
        ("o" * 16, None, "no horizontal piece A"),
        ("AAoB" + "o" * 12, None, "cells of piece B are not"),
        ("AAoBBooo" + "o" * 8, None, "cells of piece B are not"),  # over the end of a row
        ("AABoooBBoooooooo", None, "cells of piece B are not"),
        ("AABoooooooBooooo", None, "cells of piece B are not"),
    ],
)
def test_what_is_no_board_is_refused(text, size, message):
    with pytest.raises(ValueError, match=message):
        board_of(text, size)
