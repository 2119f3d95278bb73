import pytest

from rl4p.data.distinct import distinct
from rl4p.errors import InputError
from rl4p.types import Question


def question(name):
    return Question(id=name, question=name, answer="1", task="t")


def test_repeated_and_impossible_draws_are_left_out():
    draws = iter(["a", None, "b", "a", "a", "c", "d"])
    questions = distinct(lambda: None if (x := next(draws)) is None else question(x), 3)
    assert [row.id for row in questions] == ["a", "b", "c"]
    assert next(draws) == "d"


def test_too_few_different_questions_are_refused():
    with pytest.raises(InputError, match=r"is 2, but 60 random draws made only 1 different"):
        distinct(lambda: question("a"), 2)
