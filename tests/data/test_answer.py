import pytest

from rl4p.data.answer import final_answer, same_answer


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
        *[(r"10,\!000", "10000", True), (r"1,\!200", "1, 200", False), ("1 234", "1234", True)],
        *[(r"0.\overline{3}", "1/3", True), (r"0.\overline{3}", "0.333", False)],
        *[("101_2", "5", True), ("101_2", "101", False), ("101_2", "101_3", False)],
        *[("1.6e-19", r"1.6\times 10^{-19}", True), ("0.00", r"\frac{1}{13983816}", False)],
        *[("-0", "0", True), ("-0.0", "+0", True), ("3 4/4", "4", False), ("3 4/4", "3", False)],
        *[("\uff11\uff12", "12", True), ("\u00bd", "0.5", True), ("3 4/4", "3 4/4", True)],
    ],
)
def test_answers_are_compared_as_numbers_and_otherwise_as_text(given, reference, same):
    assert same_answer(given, reference) is same
