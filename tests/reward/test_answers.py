"""Tests the terms that grade the final answer."""

import importlib
import logging
import math
import re
import threading
from math import isnan

import numpy as np
import pytest

from experiments.drills import bombs
from experiments.drills.small_run import SLOWLY, SMALL
from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.data.countdown import Countdown as Puzzles
from rl4p.data.rush_hour import RushHour as Boards
from rl4p.data.rush_hour_board import Move, board_of, play, solve, written
from rl4p.loop.loop import train
from rl4p.reward.answers import Correct, Countdown, Crossword, Math, RushHour, Ungradable, with_nan
from rl4p.runs.build import build, build_phases


def test_ungradable_responses_are_nan_and_are_counted(caplog):
    grades = with_nan([1.0, Ungradable("it is empty"), None, Ungradable("it is long")], "graded")
    assert [grades[0], grades[2]] == [1.0, None]
    assert math.isnan(grades[1])
    assert math.isnan(grades[3])
    assert caplog.messages == [
        "2 of 4 responses could not be graded, the first because it is empty."
    ]


def test_grades_alone_are_not_logged(caplog):
    assert with_nan([0.0, None], "graded") == [0.0, None]
    assert not caplog.messages


gsm8k_answers = importlib.import_module("experiments.benchmarks.gsm8k_answers")


def test_only_the_final_answer_counts(make_prompt, make_episodes):
    cases = {
        "1+1=2 #### 1,200.0": 1.0,
        "#### $1200.": 1.0,
        "1200": 0.0,
        "#### 1200 #### 5": 0.0,
        "#### 1,2,0,0": 0.0,
        "": 0.0,
    }
    prompts = (make_prompt(answer="1200"),) * len(cases)
    assert Correct()(make_episodes(tuple(cases), prompts)) == list(cases.values())


def test_each_response_is_compared_with_its_own_prompt(make_prompt, make_episodes):
    prompts = (make_prompt(answer="1"), make_prompt(answer="2"))
    assert Correct()(make_episodes(("#### 2", "#### 2"), prompts)) == [0, 1]


def test_a_right_answer_weighs_one_by_default():
    assert Correct().weight == 1.0
    assert Correct(weight=0.25).weight == 0.25


def test_the_answer_is_taken_from_where_it_is_said_to_stand(make_prompt, make_episodes):
    responses = ("#### 12", r"\boxed{12 apples}", "<answer>12</answer>", "It is $12.00", "twelve")
    episodes = make_episodes(responses, (make_prompt(answer="12"),) * 5)
    assert Correct()(episodes) == [1, 0, 0, 0, 0]
    assert Correct(extract="boxed")(episodes) == [0, 1, 0, 0, 0]
    assert Correct(extract="answer")(episodes) == [0, 0, 1, 0, 0]
    assert Correct(extract="number")(episodes) == [1, 1, 1, 1, 0]
    assert Correct(extract=("boxed", "hashes"))(episodes) == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("rules", [(), ("boxed", "hashes", "boxed")])
def test_places_are_named_once(rules):
    with pytest.raises(ValueError, match="must name at least one place, and none twice"):
        Correct(extract=rules)


@pytest.mark.slow
def test_places_are_named_on_the_command_line():
    def extract(*words):
        return build_phases(compose(list(words))).reward.terms["correct"].extract

    assert extract() == "hashes"
    assert extract("reward.terms.correct.extract=boxed") == "boxed"
    assert extract("reward.terms.correct.extract=[boxed,hashes]") == ("boxed", "hashes")
    with pytest.raises(InputError, match=r"reward\.terms\.correct\.extract"):
        extract("reward.terms.correct.extract=last")


def golds(count: int):
    """Yields a random generator with whole and decimal numbers of both signs, but not 0."""
    random = np.random.Generator(np.random.Philox(0))
    for _ in range(count):
        whole = int(10 ** random.uniform(0, 7))
        cents = f".{random.integers(1, 100):02}" if random.random() < 0.3 else ""
        yield random, ("-" if random.random() < 0.2 else "") + f"{whole}{cents}"


@pytest.mark.parametrize(
    ("variants", "grade"), [(gsm8k_answers.reformatted, 1.0), (gsm8k_answers.near_misses, 0.0)]
)
def test_5000_rewritten_answers_are_right_and_5000_near_misses_are_wrong(variants, grade):
    pairs = [
        (f"It is {gold}. #### {text}", gold)
        for random, gold in golds(400)
        for text in variants(random, gold)
    ]
    grades = Correct()(list(gsm8k_answers.episodes(pairs)))
    assert len(pairs) > 5000
    assert [pair for pair, found in zip(pairs, grades, strict=True) if found != grade] == []


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("variants", "grade"), [(gsm8k_answers.reformatted, 1.0), (gsm8k_answers.near_misses, 0.0)]
)
def test_the_reward_of_gsm8k_reads_numbers_and_near_misses_in_any_format(variants, grade):
    term = build_phases(compose(["reward=gsm8k"])).reward.terms["correct"]
    pairs = [
        pair
        for random, gold in golds(150)
        for pair in gsm8k_answers.in_all_formats(variants(random, gold), gold)
    ]
    grades = term(list(gsm8k_answers.episodes(pairs)))
    assert len(pairs) > 10000
    assert [pair for pair, found in zip(pairs, grades, strict=True) if found != grade] == []


TERM = ("+reward.terms.math._target_=rl4p.reward.answers.Math",)


@pytest.fixture(scope="module")
def term():
    live = Math(response_seconds=30.0).open()
    yield live
    live.close()


@pytest.fixture
def graded(make_episodes, make_prompt):
    def graded(term, *responses, answer="1/2"):
        return term(make_episodes(responses, [make_prompt(answer=answer)] * len(responses)))

    return graded


@pytest.mark.slow
def test_each_response_is_compared_with_its_own_answer(term, make_episodes, make_prompt):
    prompts = [make_prompt(answer=answer) for answer in ("0.5", r"\sqrt{8}", "1,000", "7")]
    responses = [
        *(r"so \boxed{\frac{1}{2}}", r"\boxed{2\sqrt{2}}", r"\boxed{1000}", r"the answer is 7"),
    ]
    grades = term(make_episodes(responses, prompts))
    assert grades == [1.0, 1.0, 1.0, 0.0]
    assert all(type(grade) is float for grade in grades)


@pytest.mark.slow
def test_the_place_of_the_answer_is_an_option(graded):
    response = r"first \boxed{2}, then <answer>3</answer> #### 4" + "\n" + "or 5"
    for extract, answer in (*(("boxed", "2"), ("answer", "3"), ("hashes", "4"), ("number", "5")),):
        assert graded(Math(extract=extract, workers=1), response, answer=answer) == [1.0]


@pytest.mark.slow
def test_a_response_over_the_deadline_is_invalid_and_its_neighbours_are_not(graded, caplog):
    term = Math(response_seconds=3.0).open()
    assert graded(term, r"\boxed{0.5}") == [1.0]
    with caplog.at_level(logging.WARNING):
        grades = graded(term, r"\boxed{0.5}", r"\boxed{9^{9^9}+x}", r"\boxed{3}", r"\boxed{1/2}")
    assert "1 of 4 answers could not be compared, the first because it took" in caplog.text
    assert math.isnan(grades.pop(1))
    assert grades == [1.0, 0.0, 1.0]
    assert term.workers.restarts == 1
    term.close()


def test_the_missing_library_is_refused_when_the_run_is_built(monkeypatch):
    monkeypatch.setattr("rl4p.reward.answers.find_spec", lambda name: None)
    config = compose(TERM)
    with pytest.raises(
        InputError, match=r"^reward\.terms\.math.*math-verify is not installed.*'rl4p\[math\]'"
    ):
        instantiate(config.reward)


def test_options_are_checked_when_the_configuration_is_read():
    with pytest.raises(InputError, match=r"reward\.terms\.math\.extract"):
        compose([*TERM, "+reward.terms.math.extract=bocks"])
    with pytest.raises(InputError, match=r"reward\.terms\.math\.response_seconds"):
        compose([*TERM, "+reward.terms.math.response_seconds=0"])


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_run_goes_on_beside_bombs():
    grades = []
    thread = threading.Thread(target=bombs.graded, args=(grades,))
    words = [*SMALL, SLOWLY, "steps=1000000", "evaluation.every=0"]  # rewards differ
    experiment = build(compose(words))
    steps = train(experiment.loop, experiment.state)
    next(steps)
    thread.start()
    beside = []
    while thread.is_alive():
        beside.append(next(steps).metrics)
    assert [each["right"] for each in grades] == [1.0] * len(bombs.BOMBS)
    assert all(each["grade"] == 0.0 or math.isnan(each["grade"]) for each in grades)
    assert all(each["restarts"] <= 1 for each in grades)
    assert len(beside) >= 10
    assert any(metrics["update/grad_norm"] > 0 for metrics in beside)


GIVEN = {"numbers": [3, 5, 7], "target": 22}


def test_a_right_expression_is_worth_one_and_others_are_worth_nothing(make_prompt, make_episodes):
    responses = ("3*5=15 15+7=22 #### 3*5+7", "#### 3+5+7", "#### 22", "3*5+7", "#### 9**9**9", "")
    prompts = (make_prompt(answer="7+3*5", metadata=GIVEN),) * 6
    assert Countdown()(make_episodes(responses, prompts)) == [1, 0, 0, 0, 0, 0]
    assert Countdown(partial=0.1)(make_episodes(responses, prompts)) == [1, 0.1, 0, 0, 0, 0]


def test_the_answer_is_taken_from_where_it_is_said_to_stand_of_countdown(
    make_prompt, make_episodes
):
    episodes = make_episodes(
        ("<answer> (3*5)+7 = 22 </answer>", r"\boxed{3*5+7}", "#### 3*5+7"),
        (make_prompt(metadata=GIVEN),) * 3,
    )
    assert Countdown(extract="answer")(episodes) == [1, 0, 0]
    assert Countdown(extract=("boxed", "hashes"))(episodes) == [0, 1, 1]
    for rules in ("number", ("hashes", "number")):
        with pytest.raises(ValueError, match="extract=number finds a number"):
            Countdown(extract=rules)


def test_each_response_is_graded_by_its_own_question(make_prompt, make_episodes):
    prompts = (make_prompt(answer="1+2"), make_prompt(answer="2+2"), make_prompt(answer="none"))
    grades = Countdown()(make_episodes(("#### 2+1",) * 3, prompts))
    assert grades[:2] == [1, 0]
    assert math.isnan(grades[2])  # there is nothing to compare it with


FORMS = [
    *({"numbers": [3, 5, 7], "target": target} for target in (22.0, "22", "22.0", np.int64(22))),
    *({"nums": nums, "target": 22} for nums in ([7, 5, 3], (3, 5, 7), np.array([3, 5, 7]))),
    *({"numbers": text, "target": "22"} for text in ("[3, 5, 7]", "3 5 7", "3,5,7")),
    {"numbers": [3.0, "5", 7], "target": np.float32(22)},
    {"numbers": [3, 5, 7], "nums": [7, 3, 5], "target": 22},
    {"numbers": None, "nums": [3, 5, 7], "target": 22},
]
UNREADABLE = [
    ({"numbers": [3, 5, 7], "target": "about 22"}, "'about 22' is no number"),
    ({"numbers": [3, 5, 7], "target": float("nan")}, "nan is no number"),
    ({"numbers": [3, 5, 7], "target": True}, "True is no number"),
    ({"numbers": [3, 5, 7], "target": [22]}, r"\[22\] is no number"),
    ({"numbers": [3, None, 7], "target": 22}, "None is no number"),
    ({"numbers": [3, 5.5, 7], "target": 22}, "5.5 is no whole number"),
    ({"numbers": "3 and 5", "target": 22}, "'and' is no number"),
    ({"numbers": 357, "target": 22}, "357 is no list of numbers"),
    ({"numbers": [], "target": 22}, r"\[\] is no list of numbers"),
    ({"numbers": [3, 5, 7], "nums": [3, 5], "target": 22}, "there are other numbers"),
    ({"numbers": [3, 5, 7]}, "has no target, and the answer is no expression"),
    ({"target": 22}, "has no numbers, and the answer is no expression"),
    ({}, "has no numbers, and the answer is no expression"),
]


@pytest.mark.parametrize("metadata", FORMS, ids=repr)
def test_metadata_with_one_meaning_is_read(make_prompt, make_episodes, metadata):
    prompts = (make_prompt(answer="22", metadata=metadata),) * 3
    assert Countdown()(make_episodes(("#### 3*5+7", "#### 22", "#### 3+5+7"), prompts)) == [1, 0, 0]


@pytest.mark.parametrize(("metadata", "reason"), UNREADABLE, ids=repr)
def test_one_row_with_unreadable_metadata_is_invalid(
    make_prompt, make_episodes, metadata, reason, caplog
):
    prompts = (make_prompt(answer="22", metadata=metadata), make_prompt(metadata=GIVEN))
    grades = Countdown()(make_episodes(("#### 22", "#### 3*5+7"), prompts))
    assert math.isnan(grades[0])
    assert grades[1] == 1
    assert re.search(f"1 of 2 responses could not be graded, .* row a: .*{reason}", caplog.text)


def test_a_worked_answer_completes_the_metadata(make_prompt, make_episodes):
    def grade(**fields):
        return Countdown()(make_episodes(("#### 3*5+7",), (make_prompt(**fields),)))[0]

    assert grade(answer="7+3*5", metadata={"target": "22"}) == 1
    assert grade(answer="7+3*5", metadata={"numbers": [3, 5, 7]}) == 1
    assert math.isnan(grade(answer="7+3*5", metadata={"target": 23}))
    assert math.isnan(grade(answer="7+3*5", metadata={"numbers": [3, 5, 8]}))


def test_the_answers_of_the_data_set_are_right(make_prompt, make_episodes):
    rows = Puzzles(operators="+-*/", train_size=200).train()
    for fields in ({}, {"metadata": {}}):
        prompts = [make_prompt(**vars(row) | fields) for row in rows]
        assert set(Countdown()(make_episodes([row.solution for row in rows], prompts))) == {1.0}
    others = [row.solution for row in (*rows[1:], rows[0])]
    assert sum(Countdown()(make_episodes(others, prompts))) == 0


@pytest.fixture
def grade(make_prompt, make_episodes):
    def grade(response, answer="New York", **options):
        prompt = make_prompt(answer=answer)
        (given,) = Crossword(**options)(make_episodes([response], [prompt]))
        return given

    return grade


@pytest.mark.parametrize(
    ("response", "exact", "shaped"),
    [
        ("<think>hm</think><answer>New York</answer>", 1, 1.0),
        ("<answer>NEW-YORK!</answer>", 1, 1.0),
        ("new york", 1, 1.0),
        ("<think>New York?</think><answer>Boston</answer>", 0, 0.02 + 0.25),
        ("<answer>It is New York</answer>", 0, 0.01 + 0.25),
        ("<answer>New Yorkers</answer>", 0, 0.01),
        ("<answer>New York", 0, 0.005 + 0.25),  # cut
        ("<think></think>", 0, 0.01),
        ("Boston", 0, 0.0),
        ("", 0, 0.0),
    ],
)
def test_an_exact_and_a_shaped_grade(grade, response, exact, shaped):
    assert grade(response) == exact
    assert grade(response, shaped=True) == pytest.approx(shaped, abs=1e-12)
    assert (grade(response, shaped=True) == 1) == (exact == 1)


def test_accents_signs_and_digits_do_not_count(grade):
    assert grade("<answer>RANDDE</answer>", answer="R&D É-1") == 1
    assert grade("<answer>r & d é</answer>", answer="R&D É-1") == 1
    assert grade("<answer>RDE</answer>", answer="R&D É-1") == 0


def test_a_tag_is_counted_once_and_is_no_word_of_the_answer(grade):
    assert grade("<answer><answer></answer>", answer="ANSWER", shaped=True) == 0.01
    assert grade("<answer>answer</answer>", answer="ANSWER", shaped=True) == 1
    # Tags divide words: they never join two halves.
    assert grade("New<think>York", shaped=True) == pytest.approx(0.005 + 0.25)


def test_a_reference_without_letters_makes_the_sample_invalid(grade):
    assert isnan(grade("<answer>42</answer>", answer="42"))
    assert isnan(grade("", answer="42", shaped=True))


def test_each_response_is_compared_with_its_own_prompt_of_crossword(make_prompt, make_episodes):
    prompts = [make_prompt(answer="Oslo"), make_prompt(answer="Rome")]
    assert Crossword()(make_episodes(["Rome", "Rome"], prompts)) == [0, 1]


def test_an_answer_weighs_one_by_default():
    assert Crossword().weight == 1.0
    assert Crossword(weight=0.5).weight == 0.5


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
