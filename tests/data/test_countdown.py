"""Tests the puzzles, their expressions and the answers that solve them."""

import random
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest

from rl4p.data.countdown import Countdown, parse, solves
from rl4p.data.extraction import final_answer


@pytest.mark.parametrize(
    ("text", "numbers", "value"),
    [
        ("7", (7,), 7),
        (" 3 + 5 ", (3, 5), 8),
        ("3+5*2", (3, 5, 2), 13),
        ("3*5+2", (3, 5, 2), 17),
        ("(3+5)*2", (3, 5, 2), 16),
        ("2*(3+5)", (2, 3, 5), 16),
        ("9-4-3", (9, 4, 3), 2),
        ("9-(4-3)", (9, 4, 3), 8),
        ("9-4*2-1", (9, 4, 2, 1), 0),
        ("8/4/2", (8, 4, 2), 1),
        ("8/(4/2)", (8, 4, 2), 4),
        ("1/3", (1, 3), Fraction(1, 3)),
        ("1/3*3", (1, 3, 3), 1),
        ("((7))", (7,), 7),
        ("3 \u00d7 5 \u2212 8 \u00f7 2", (3, 5, 8, 2), 11),
        ("[3+5]*2", (3, 5, 2), 16),
        ("007", (7,), 7),
        ("999999999*999999999", (999_999_999,) * 2, 999_999_999**2),
    ],
)
def test_expressions_have_numbers_and_an_exact_value(text, numbers, value):
    expression = parse(text)
    assert expression is not None
    assert (expression.numbers, expression.value) == (numbers, value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "()", "+", "-3", "3+-5", "3+", "+3", "3 5", "3(5)", "(3)(5)", "(3+5", "3+5)", ")3("),
        *("3)*(5", "2**3", "2^3", "2//3", "5%3", "5!", "1e5", "0x10", "1_000", "1.5", "1,000", "x"),
        *("3 x 5", "3+y", "3=3", "1/0", "5/(3-3)", "1234567890", "9**9**9", "3 if 1 else 5", "3#"),
        *("__import__('os')", "3\n+5", "\u0663", "+".join("1" * 120)),
    ],
)
def test_what_is_no_expression(text):
    assert parse(text) is None


@pytest.mark.parametrize("bomb", ["(" * 240_000, "9*" * 120_000 + "9", "9**9**9", "(" * 199 + "9"])
def test_bombs_are_refused_at_once(bomb):
    assert parse(bomb) is None


def test_the_largest_expression_is_evaluated():
    expression = parse("*".join(["999999999"] * 20))
    assert expression is not None
    assert expression.value == 999_999_999**20
    assert parse("(" * 99 + "1" + ")" * 99) is not None


def test_random_expressions_agree_with_python():
    draw = random.Random(0)

    def expression(depth: int) -> str:
        if depth == 0 or draw.random() < 0.2:
            return str(draw.randint(1, 9))
        text = draw.choice("+-*/").join((expression(depth - 1), expression(depth - 1)))
        return f"({text})" if draw.random() < 0.5 else text

    for _ in range(300):
        text = expression(4)
        exact = "".join(f"Fraction({c})" if c.isdigit() else c for c in text)
        try:
            expected = eval(exact, {"Fraction": Fraction})
        except ZeroDivisionError:
            expected = None
        parsed = parse(text)
        value = None if parsed is None else parsed.value
        assert value == (expected if len(text) <= 200 else None)


@pytest.mark.quick(2)
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
    def draw(numbers, operator, largest_target):
        random = Mock()
        random.integers.side_effect = [np.array(numbers), 0]
        random.choice.return_value = operator
        return Countdown(numbers=2, largest_target=largest_target).draw(random)

    assert draw([5, 5], "*", 24) is None
    assert draw([5, 5], "-", 24) is None  # 0
    assert draw([5, 7], "-", 24) is None
    assert draw([5, 7], "/", 24) is None
    question = draw([5, 5], "*", 25)
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
