from math import isnan

import numpy as np
import pytest

from rl4p.data.rush_hour import RushHour as Boards
from rl4p.data.rush_hour_board import Move, board_of, play, solve, written
from rl4p.reward.rush_hour import RushHour

BOARD = "oAABCooBCoooDDoo"
METADATA = {"board": BOARD, "size": 4}


@pytest.fixture
def grades(make_prompt, make_episodes):
    def grades(term, *responses, answer="Bv2,A>1", metadata=METADATA):
        prompt = make_prompt(answer=answer, metadata=metadata)
        return term(make_episodes(responses, [prompt] * len(responses)))

    return grades


VECTORS = {"Bv2,A>1": 1.0, "Bv1,Bv1,A>1": 1.0, "Bv2": 0.125, "Bv2,A>1,C>1": 0.25, "A>1": 0.0}


@pytest.mark.parametrize(("moves", "grade"), VECTORS.items())
def test_shaped_grades_that_were_fixed_in_advance(grades, moves, grade):
    """`Bv2,A>1,C>1`: 0.2 x 2/3 + 0.1 x 2/3 + 0.05. `Bv2`: 0.1 + 0.05 x (1 - 1/2)."""
    assert grades(RushHour(shaped=True), moves) == [grade]
    assert grades(RushHour(shaped=True), f"<think>A?</think> <answer>{moves}</answer>") == [grade]


def test_without_shaping_only_the_reference_is_right(grades):
    assert grades(RushHour(), *VECTORS) == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("moves", "grade"),
    [
        ("Dv1", 0.0),  # not possible: D is horizontal
        ("D>1", 0.0),  # possible, and no help
        ("A<1", 0.0),  # further from the exit, which costs nothing below 0
        ("D>1,Bv2,A>1", 0.2 * 2 / 3 + 0.05),  # solved with a move too many, not as the reference
        ("Bv2,D>1,A>1", 0.2 * 2 / 3 + 0.1 / 3 + 0.05),
        ("Bv2,D>2,A>1", 0.1 / 3 + 0.05 * 0.5),  # B stands in the way of D, and the game ends
        ("Bv2,C^1,A>1", 0.2 * 2 / 3 + 0.1 / 3 + 0.05),
        ("C^1,A>1", 0.0),
        ("Z>1", 0.0),
        ("I do not know", 0.0),
        ("", 0.0),
        ("<answer>Bv2,A>1", 0.0),  # cut
    ],
)
def test_a_part_of_the_grade(grades, moves, grade):
    assert grades(RushHour(shaped=True), moves) == [pytest.approx(grade, abs=1e-12)]


def test_another_shortest_solution_is_exact_by_choice(grades):
    """The two moves before the last can be made in either order."""
    board = "AABCooBCoooooooo"
    row = {"answer": "Bv2,Cv2,A>2", "metadata": {"board": board}}
    other = "Cv2,Bv2,A>2"
    strict, free = RushHour(), RushHour(alternatives=True)
    assert grades(strict, "Bv2,Cv2,A>2", other, **row) == [1, 0]
    assert grades(free, "Bv2,Cv2,A>2", other, **row) == [1, 1]
    assert grades(RushHour(shaped=True, alternatives=True), other, **row) == [1]
    assert grades(RushHour(shaped=True), other, **row) == [pytest.approx(0.25)]
    longer, unfinished, impossible = "Cv1,Bv2,Cv1,A>2", "Cv2,Bv2", "Cv2,Bv2,A>3"
    assert grades(free, longer, unfinished, impossible, **row) == [0, 0, 0]
    assert grades(free, "Cv2,Bv2,A>2,B^1", **row) == [0]  # a move after the end


def test_a_solution_shorter_than_the_reference_gets_no_more_than_solve(grades):
    row = {"answer": "D>1,Bv2,A>1"}
    (grade,) = grades(RushHour(shaped=True), "Bv2,A>1", **row)
    assert grade == pytest.approx(0.2 + 0.05)
    assert grades(RushHour(alternatives=True), "Bv2,A>1", **row) == [1]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "B down 2"}, "'B down 2' is not a list of moves"),
        ({"answer": ""}, "'' is not a list of moves"),
        ({"answer": "Bv2"}, "Bv2 does not solve the board oAAB"),
        ({"answer": "A>1"}, "A>1 does not solve"),
        ({"answer": "Bv2,A>1,C^1"}, "C^1 does not solve"),
        ({"metadata": {}}, "has no board"),
        ({"metadata": {"board": "AA"}}, "has 2 cells"),
        ({"metadata": {"board": BOARD, "size": 5}}, "a board of size 5"),
        ({"metadata": {"board": BOARD, "size": "four"}}, "'four' is no number"),
        ({"metadata": {"board": BOARD, "size": [4]}}, "[4] is no number"),
        ({"metadata": {"board": BOARD, "size": 4.5}}, "4.5 is no whole number"),
        ({"metadata": {"board": 7}}, "its board is neither a text nor a list of texts"),
        ({"metadata": {"board": []}}, "its board is neither a text nor a list of texts"),
        ({"metadata": {"board": ["oAAB", None]}}, "its board is neither a text nor a list"),
        ({"metadata": {"board": {"row": "oAAB"}}}, "its board is neither a text nor a list"),
        ({"metadata": {"board": b"oAAB"}}, "its board is neither a text nor a list"),
    ],
)
def test_a_row_that_does_not_fit_makes_its_samples_invalid(grades, caplog, row, reason):
    invalid = grades(RushHour(shaped=True), "Bv2,A>1", "A>1", **row)
    assert all(map(isnan, invalid))
    assert reason in caplog.text
    assert "2 of 2 responses could not be graded" in caplog.text


def test_an_exact_grade_needs_no_board(grades):
    assert grades(RushHour(), "Bv2,A>1", "A>1", metadata={}) == [1, 0]


def test_a_board_may_be_a_list_of_rows(grades):
    rows = ["oAAB", "CooB", "Cooo", "DDoo"]
    for board in (rows, tuple(rows), np.array(rows), "\n".join(rows)):
        for size in (None, 4, 4.0, "4", np.int64(4)):
            metadata = {"board": board, "size": size}
            assert grades(RushHour(shaped=True), "Bv2", metadata=metadata) == [0.125]


def test_one_row_that_does_not_fit_leaves_the_others_their_grades(make_prompt, make_episodes):
    prompts = [make_prompt(answer="Bv2,A>1", metadata={"board": 7}), make_prompt(answer="A>1")]
    first, second = RushHour()(make_episodes(["Bv2,A>1", "A>1"], prompts))
    assert isnan(first)
    assert second == 1


def test_every_response_is_graded_by_its_own_row(make_prompt, make_episodes):
    prompts = [
        make_prompt(answer="Bv2,A>1", metadata=METADATA),
        make_prompt(answer="A>2", metadata={"board": "AAoo" + "o" * 12}),
    ]
    assert RushHour()(make_episodes(["A>2", "A>2"], prompts)) == [0, 1]


def test_boards_of_the_data_set_are_graded(make_prompt, make_episodes):
    rows = Boards(size=4, train_size=60, held_out_size=2).train()
    prompts = [make_prompt(answer=row.answer, metadata=row.metadata) for row in rows]
    term = RushHour(shaped=True, alternatives=True)
    assert term(make_episodes([row.solution for row in rows], prompts)) == [1] * 60
    solutions = [solve(board_of(row.metadata["board"])) or () for row in rows]
    assert term(make_episodes([written(moves) for moves in solutions], prompts)) == [1] * 60
    wrong = [written([*moves[:-1], moves[-1]._replace(piece="Z")]) for moves in solutions]
    assert max(term(make_episodes(wrong, prompts))) < 0.2
    # An idle move before the solution is a move too many.
    for row, prompt in zip(rows, prompts, strict=True):
        board = board_of(row.metadata["board"])
        moves = solve(play(board, [])[0]) or ()
        idle = (*moves, Move("A", "<", 1))
        assert term(make_episodes([written(idle)], [prompt]))[0] < 0.9


def test_a_solution_weighs_one_by_default():
    assert RushHour().weight == 1.0
    assert RushHour(weight=0.5).weight == 0.5
