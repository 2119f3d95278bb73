from decimal import Decimal

import pytest

from rl4p.data.answer import boxed, final_answer, number, same_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2+2=4 #### 4", "4"),
        ("####4", "4"),
        ("#### 1 no, #### 2", "2"),
        ("#### 4\nand more", "4"),
        ("#### \n 4", "4"),
        ("####", ""),
        ("4", None),
        ("", None),
        ("### 4", None),
    ],
)
def test_the_final_answer_stands_after_the_last_marker(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", "12"),
        (" 12 ", "12"),
        ("-3", "-3"),
        ("+3", "3"),
        ("0.50", "0.5"),
        ("007", "7"),
        ("$12", "12"),
        ("-$12", "-12"),
        ("$-12", "-12"),
        ("12%", "12"),
        ("12.", "12"),
        ("12%.", "12"),
        ("$1,234.50", "1234.5"),
        ("1,234,567", "1234567"),
        ("-1,234", "-1234"),
    ],
)
def test_numbers_as_people_write_them(text, value):
    assert number(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "$", "%", "1,2", "12,34", "1,2345", ",123", "1,234,5", "1 2", "1.2.3", "--1",
     "one", "1e5", "nan", "inf", "0x10", "1_000", "½", "9" * 65, "1/2", "12 apples"],
)  # fmt: skip
def test_what_is_no_number(text):
    assert number(text) is None


@pytest.mark.parametrize(
    ("given", "reference", "same"),
    [
        ("12", "12", True),
        ("12.0", "12", True),
        ("$1,234", "1234", True),
        ("1,2", "12", False),
        ("-12", "12", False),
        ("12", "13", False),
        ("twelve", "12", False),
        ("", "12", False),
        (None, "12", False),
        (None, "Paris", False),
        (" Paris ", "Paris", True),
        ("paris", "Paris", False),
        ("12", "Paris", False),
        ("0.1", "0.10000000000000000000001", False),
        # Units and fractions are understood only where the reference is a number.
        ("5 apples", "5", True),
        ("$5 per hour", "5", True),
        ("12%", "12", True),
        ("12", "12%", True),
        ("0.12", "12%", False),
        ("3/4", "0.75", True),
        ("0.75", "3/4", True),
        ("0.333", "1/3", False),
        (r"\frac{3}{4}", "3/4", True),
        ("1.5 million", "1,500,000", True),
        ("5 pears", "5 apples", False),
        ("5", "5 apples", False),
        ("5 apples", "5 apples", True),
        ("1  3\n7", "1 3 7", True),
        ("1 37", "1 3 7", False),
        ("12 or 15", "12", False),
        ("2 15", "215", False),
    ],
)
def test_answers_are_compared_as_numbers_and_otherwise_as_text(given, reference, same):
    assert same_answer(given, reference) is same


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{1} and \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}} ends", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \mid x > 0 \right.}", r"\left\{ x \mid x > 0 \right."),
        (r"\boxed{a\\}b", r"a\\"),
        (r"\fbox{3}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed 5", None),
        ("5", None),
    ],
)
def test_the_last_box_with_its_nested_braces(text, content):
    assert boxed(text) == content
