from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4p.base.errors import InputError
from rl4p.data.rush_hour import RushHour, signature
from rl4p.data.rush_hour_board import StateSpace, board_of, fewest_moves, play, solve, strict_moves

SMALL = RushHour(size=4, least_moves=2, most_moves=5, train_size=150, held_out_size=20)


def boards(rows):
    return [board_of(row.metadata["board"], row.metadata["size"]) for row in rows]


@settings(max_examples=8)
@given(st.integers(3, 5), st.integers(0, 2), st.integers(0, 1000))
def test_the_answer_of_every_board_is_a_shortest_solution(size, walls, seed):
    most = {3: 2, 4: 4, 5: 9}[size]
    data = RushHour(
        size=size, walls=walls, seed=seed, least_moves=1, most_moves=most, train_size=10,
        held_out_size=2,
    )  # fmt: skip
    rows = [*data.held_out(), *data.train()]
    assert len(rows) == 12
    for row, board in zip(rows, boards(rows), strict=True):
        moves, solution = strict_moves(row.answer), solve(board)
        assert moves is not None
        assert solution is not None
        last, made = play(board, moves)
        assert last.solved
        assert made == len(moves) == len(solution) == row.metadata["moves"]
        assert 1 <= made <= most
        assert len(board.walls) == walls
        assert board.size == size
        assert row.solution == f"<answer>{row.answer}</answer>"


def test_no_board_occurs_twice_and_none_to_train_on_is_reached_from_a_held_out_one():
    # There are so few boards of 3 x 3 that independent draws would share layouts.
    data = RushHour(size=3, least_moves=1, most_moves=3, train_size=25, held_out_size=10)
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (25, 10)
    assert len({row.id for row in [*train, *held_out]}) == 35
    reached = set()
    for board in boards(held_out):
        space = StateSpace(board)
        layouts = {str(space.board_at(state)) for state in fewest_moves(space, 10_000)}
        reached |= {letters_left_out(each) for each in layouts}
    assert not reached & {letters_left_out(row.metadata["board"]) for row in train}
    assert len({signature(board) for board in boards(held_out)}) == 10


def letters_left_out(text):
    """Returns the board with pieces named in the order in which a reader meets them."""
    names = iter("bcdefghijklmn")
    found = {"A": "A", "o": "o", "x": "x"}
    return "".join(found.setdefault(cell, "") or found.update({cell: next(names)}) or found[cell]
                   for cell in text)  # fmt: skip


def test_boards_depend_on_the_seed_alone():
    again = RushHour(size=4, least_moves=2, most_moves=5, train_size=150, held_out_size=20)
    assert again.train() == SMALL.train()
    longer = RushHour(size=4, least_moves=2, most_moves=5, train_size=200, held_out_size=20)
    assert longer.held_out() == SMALL.held_out()
    assert longer.train()[:150] == SMALL.train()
    other = RushHour(size=4, least_moves=2, most_moves=5, train_size=150, held_out_size=20, seed=1)
    assert not {row.id for row in other.held_out()} & {row.id for row in SMALL.held_out()}


def test_the_first_boards_are_the_same_on_every_machine():
    first = SMALL.held_out()[0]
    assert (first.id, first.answer) == ("rush_hour/AABCooBCDDoCoooo", "Cv1,Bv1,A>2")


def test_the_difficulty_is_mixed():
    counts = Counter(row.metadata["moves"] for row in SMALL.train())
    assert set(counts) >= {2, 3, 4}
    assert counts[3] > 30


def test_pieces_are_named_in_the_order_of_their_first_cells():
    for row in SMALL.train():
        letters = [cell for cell in dict.fromkeys(row.metadata["board"]) if cell not in "oxA"]
        assert letters == sorted(letters)
        assert letters[0] == "B"


def test_a_question_shows_the_board_row_by_row():
    row = SMALL.train()[0]
    lines = row.question.split("\n")
    assert [len(line) for line in lines] == [7] * 4
    assert "".join(row.question.split()) == row.metadata["board"]
    assert row.task == "rush_hour"


def test_the_range_of_moves_is_kept():
    data = RushHour(size=4, least_moves=4, most_moves=4, train_size=10, held_out_size=5)
    assert {row.metadata["moves"] for row in [*data.train(), *data.held_out()]} == {4}


@pytest.mark.slow
def test_more_boards_than_there_are_is_refused():
    data = RushHour(size=3, least_moves=2, most_moves=9, train_size=5000, held_out_size=2)
    with pytest.raises(InputError, match=r"Only \d+ of data.held_out_size \+ data.train_size = 5"):
        data.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least_moves": 5, "most_moves": 4}, "least_moves=5 is more than most_moves=4"),
        ({"size": 4, "walls": 5}, "walls=5 is more than a quarter of the 16 cells"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RushHour(**options)
