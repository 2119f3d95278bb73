import numpy as np
import pytest

from rl4p.data.answer import final_answer
from rl4p.data.countdown import Countdown, puzzle, solves
from rl4p.data.expression import parse


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"numbers": 2, "train_size": 100},
        {"numbers": 4, "operators": "+-*/", "largest": 25},
        {"numbers": 6, "smallest": 5, "largest": 25, "largest_target": 90, "operators": "-/+"},
    ],
)
def test_every_question_is_solved_by_its_answer_and_its_worked_solution(options):
    data = Countdown(**{"train_size": 300, "held_out_size": 40} | options)
    for row in (*data.train(), *data.held_out()):
        numbers, target = row.metadata["numbers"], row.metadata["target"]
        assert row.question == f"{' '.join(map(str, numbers))} = {target}"
        assert len(numbers) == data.numbers
        assert all(data.smallest <= number <= data.largest for number in numbers)
        assert 1 <= target <= data.largest_target
        assert set("+-*/") & set(row.answer) <= set(data.operators)
        expression = parse(row.answer)
        assert expression is not None
        assert (sorted(expression.numbers), expression.value) == (numbers, target)
        assert row.solution is not None
        assert final_answer(row.solution) == row.answer
        worked = row.solution.partition(" ####")[0].split(" ")
        assert len(worked) == data.numbers - 1
        for step in worked:
            left, right = map(parse, step.split("="))
            assert left is not None
            assert right is not None
            assert left.value == right.value
        assert worked[-1].endswith(f"={target}")


def test_questions_have_all_operators_and_parentheses():
    answers = [row.answer for row in Countdown(operators="+-*/", train_size=500).train()]
    for character in "+-*/(":
        assert sum(character in answer for answer in answers) > 20


def test_a_target_outside_the_limits_makes_no_question():
    random = np.random.Generator(np.random.Philox(0))
    assert puzzle([5, 5], "*", 24, random) is None
    assert puzzle([5, 5], "-", 24, random) is None  # 0
    assert puzzle([5, 7], "-", 24, random) is None
    assert puzzle([5, 7], "/", 24, random) is None
    question = puzzle([5, 5], "*", 25, random)
    assert question is not None
    assert (question.question, question.solution) == ("5 5 = 25", "5*5=25 #### 5*5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smallest": 30}, r"smallest=30 is more than largest=20"),
        ({"operators": ""}, r"operators='' must be some of"),
        ({"operators": "+^"}, r"operators='\+\^' must be some of"),
        ({"operators": "++"}, r"operators='\+\+' must be some of"),
    ],
)
def test_options_that_make_no_question_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Countdown(**options)


GIVEN = {"numbers": [3, 5, 7], "target": 22}


@pytest.mark.parametrize(
    ("text", "well_formed", "right"),
    [
        ("3*5+7", True, True),
        ("7 + 5 * 3", True, True),
        ("(5*3)+7 = 22", True, True),
        ("(5*3)+7 = 21", True, False),
        ("(5*3)+7 = about 22", True, False),
        ("(5*3)+7 =", True, False),
        ("3+5+7", True, False),
        ("3+5+7 = 22", True, False),
        ("3*5+7 = 22 = 22", True, False),
        ("15+7", False, False),
        ("3*5+7+3-3", False, False),
        ("22", False, False),
        ("3*5", False, False),
        ("22 = 3*5+7", False, False),
        ("", False, False),
        ("3*5+7**1", False, False),
    ],
)
def test_an_answer_has_each_number_once_and_the_exact_value(text, well_formed, right):
    assert solves(text, "", GIVEN) == (well_formed, right)
    assert solves(text, "7+3*5", {}) == (well_formed, right)


def test_fractions_in_between_are_exact():
    given = {"numbers": [1, 3, 3], "target": 1}
    assert solves("1/3*3", "", given) == (True, True)
    assert solves("8/(3-8/3)", "", {"numbers": [8, 3, 8, 3], "target": 24}) == (True, True)


def test_metadata_comes_before_the_reference_and_one_of_them_is_needed():
    assert solves("3*5+7", "3+5+7", GIVEN) == (True, True)
    for reference, metadata in (("22", {"numbers": (3, 5, 7)}), ("no expression", {}), ("22", {})):
        with pytest.raises(ValueError, match="and the answer is no expression"):
            solves("22", reference, metadata)
