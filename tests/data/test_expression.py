import random
from fractions import Fraction

import pytest

from rl4p.data.expression import parse


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
        found = parse(text)
        assert (None if found is None else found.value) == (expected if len(text) <= 200 else None)
