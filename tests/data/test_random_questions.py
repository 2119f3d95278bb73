from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.countdown import Countdown
from rl4p.data.letter_counting import LetterCounting
from rl4p.data.random_questions import RandomQuestions
from rl4p.data.sorting import Sorting


@dataclass(frozen=True, kw_only=True)
class Given(RandomQuestions):
    """Draws the given names, in their order."""

    names: Iterator[str | None]

    def draw(self, random):
        name = next(self.names)
        return None if name is None else Question(id=name, question=name, answer="1", task="t")


def test_repeated_and_impossible_draws_are_left_out():
    names = iter(["a", None, "b", "a", "a", "c", "d"])
    data = Given(names=names, train_size=2, held_out_size=1)
    assert [row.id for row in data.held_out()] == ["a"]
    assert [row.id for row in data.train()] == ["b", "c"]
    assert next(names) == "d"


def test_too_few_different_questions_are_refused():
    data = Given(names=iter(["a"] * 60), train_size=1, held_out_size=1)
    with pytest.raises(InputError, match=r"is 2, but 60 random draws made only 1 different"):
        data.train()


@pytest.mark.parametrize("task", [Countdown, LetterCounting, Sorting])
def test_no_question_is_asked_twice_or_held_out_and_trained_on(task):
    data = task(train_size=500, held_out_size=100)
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (500, 100)
    assert len({row.question for row in (*train, *held_out)}) == 600
    assert task(train_size=500, held_out_size=100).train() == train
    assert task(train_size=500, held_out_size=100, seed=1).train() != train
