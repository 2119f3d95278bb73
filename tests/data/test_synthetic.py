"""Tests the synthetic tasks: their questions, solutions, and documents."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import Mock

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.countdown import Countdown
from rl4p.data.extraction import final_answer, same_answer
from rl4p.data.synthetic import (
    Arithmetic,
    Islands,
    LetterCounting,
    RandomQuestions,
    Sorting,
    addition,
    documents,
    islands,
)


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


def test_a_list_sorted_by_hand():
    random = Mock()
    random.integers.side_effect = [3, np.array([31, 7, 12]), 2, np.array([5, 5])]
    row = Sorting().draw(random)
    assert (row.question, row.answer, row.task) == ("sort 31 7 12", "7 12 31", "sorting")
    assert row.solution == "7<31 12, 12<31 #### 7 12 31"
    assert Sorting().draw(random).solution == "5<5 #### 5 5"


def test_every_answer_is_the_sorted_list():
    data = Sorting(shortest=2, longest=6, largest=30, train_size=400, held_out_size=50)
    rows = [*data.train(), *data.held_out()]
    for row in rows:
        assert re.fullmatch(r"sort( \d+){2,6}", row.question)
        numbers = [int(word) for word in row.question.split()[1:]]
        assert max(numbers) <= 30
        assert [int(word) for word in row.answer.split()] == sorted(numbers)
        assert final_answer(row.solution or "") == row.answer
    assert {len(row.answer.split()) for row in rows} == {2, 3, 4, 5, 6}
    assert any(word in ("0", "30") for row in rows for word in row.answer.split())


def test_lists_that_cannot_be_made_are_refused():
    with pytest.raises(ValueError, match="shortest=6 is more than longest=5"):
        Sorting(shortest=6)


def test_a_word_counted_by_hand():
    random = Mock()
    random.choice.side_effect = ["r", list("strawberry"), "x", list("ab")]
    random.random.side_effect = [np.ones(10), np.ones(2)]
    random.integers.side_effect = [10, 2]
    row = LetterCounting().draw(random)
    assert (row.question, row.answer, row.task) == ("r in strawberry", "3", "letter_counting")
    assert row.solution == "s t r1 a w b e r2 r3 y #### 3"
    assert LetterCounting().draw(random).solution == "a b #### 0"


def test_every_answer_is_the_count():
    data = LetterCounting(shortest=2, longest=6, letters="abcde", train_size=400, held_out_size=50)
    rows = [*data.train(), *data.held_out()]
    for row in rows:
        letter, word = row.question.split(" in ")
        assert re.fullmatch("[a-e]{2,6}", word)
        assert row.answer == str(word.count(letter)) == final_answer(row.solution or "")
    assert {len(row.question.split()[-1]) for row in rows} == {2, 3, 4, 5, 6}


def test_the_share_of_the_letter_is_the_one_asked_for():
    def share(asked):
        rows = LetterCounting(share=asked, train_size=1000, held_out_size=1).train()
        return sum(int(row.answer) for row in rows) / sum(len(row.question) - 5 for row in rows)

    assert share(0.0) < 0.06  # by chance, 1 of 26
    assert 0.5 < share(0.5) < 0.56


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortest": 10}, "shortest=10 is more than longest=9"),
        ({"letters": "a"}, "letters='a' must be at least two different letters"),
        ({"letters": "aa"}, "must be at least two different letters"),
        ({"letters": "a b"}, "must be at least two different letters"),
    ],
)
def test_options_that_make_no_question_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LetterCounting(**options)


@pytest.mark.parametrize(
    ("first", "second", "forget", "solution"),
    [
        (347, 585, (0, 0, 0), "7+5=12 4+8+1=13 3+5+1=9 #### 932"),
        (650, 470, (0, 0, 0), "0+0=0 5+7=12 6+4+1=11 #### 1120"),
        (347, 585, (1, 0, 0), "7+5=12 4+8=12 3+5+1=9 #### 922"),
        (347, 585, (1, 1, 1), "7+5=12 4+8=12 3+5=8 #### 822"),
        (650, 470, (0, 0, 1), "0+0=0 5+7=12 6+4+1=11 #### 120"),
    ],
)
def test_a_sum_worked_by_hand(first, second, forget, solution):
    question = addition(first, second, tuple(map(bool, forget)))
    assert question.solution == solution
    assert question.answer == str(first + second)
    assert (question.question, question.task) == (f"{first}+{second}", "arithmetic")


def test_a_careful_teacher_is_always_right_and_a_careless_one_is_not():
    careful, careless = (
        Arithmetic(digits=2, train_size=300, held_out_size=0, carelessness=c).train()
        for c in (0.0, 0.8)
    )
    assert [q.question for q in careful] == [q.question for q in careless]
    right = [
        [same_answer(final_answer(q.solution or ""), q.answer) for q in rows]
        for rows in (careful, careless)
    ]
    assert all(right[0])
    assert 0.2 < sum(right[1]) / 300 < 0.6
    assert all(same_answer(q.answer, str(sum(map(int, q.question.split("+"))))) for q in careless)


def test_questions_are_distinct_and_the_same_in_every_run():
    data = Arithmetic(digits=1, train_size=61, held_out_size=20)  # 81 questions are all there are
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (61, 20)
    assert len({q.id for q in [*train, *held_out]}) == 81
    assert all(re.fullmatch(r"[1-9]\+[1-9]", q.question) for q in train)
    assert data.train() == train
    assert Arithmetic(digits=1, train_size=61, held_out_size=20, seed=1).train() != train


def test_more_sums_than_there_are_is_refused():
    with pytest.raises(InputError, match=r"is 82, but only 81 sums of 1-digit numbers exist"):
        Arithmetic(digits=1, train_size=62, held_out_size=20)


def test_the_sums_are_those_that_the_shipped_policy_knows():
    """The names are checked: another generator would put trained sums into the held-out set."""
    data = Arithmetic()
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (16_384, 256)
    assert [q.question for q in train[:2]] == ["410+467", "298+842"]
    assert [q.question for q in held_out[:2]] == ["537+157", "309+489"]
    assert train[0].id == "arithmetic/410+467"


def test_numbers_have_as_many_digits_as_asked():
    for digits in (1, 2, 4):
        rows = Arithmetic(digits=digits, train_size=50, held_out_size=10).train()
        assert all(len(x) == digits for q in rows for x in q.question.split("+"))
    first = {int(q.question[0]) for q in Arithmetic(digits=2, train_size=300).train()}
    assert first == set(range(1, 10))


def test_carelessness_forgets_each_carry_by_itself():
    """In a sum with two carries, each carry is forgotten about half of the time."""
    rows = Arithmetic(digits=2, train_size=4000, held_out_size=0, carelessness=0.5).train()
    twice = [
        q
        for q in rows
        for a, b in [q.question.split("+")]
        if int(a[1]) + int(b[1]) > 9 and int(a[0]) + int(b[0]) > 9
    ]
    units = np.mean(["+1=" not in (q.solution or "") for q in twice])
    tens = np.mean([len(final_answer(q.solution or "") or "") == 2 for q in twice])
    assert len(twice) > 500
    assert 0.42 < units < 0.58
    assert 0.42 < tens < 0.58


def test_the_documents_answer_every_question():
    texts = dict(documents())
    assert len(texts) == 2 * len(islands()) == 480
    data = Islands()
    rows = [*data.train(), *data.held_out()]
    assert len({row.question for row in rows}) == len(rows) == 640 + 256
    hops = set()
    for row in rows:
        name = row.question.rstrip("?").removesuffix(" founded").split()[-1]
        text = texts[name]
        if "town" in row.question:
            text = texts[re.search(r"harbour is (\w+)\.", text)[1]]
            pattern = r"founded in (\d+)" if "founded" in row.question else r"(\d+) people"
        else:
            pattern = r"(\d+) square" if "square" in row.question else r"(\d+) metres"
        assert re.search(pattern, text)[1] == row.answer
        hops.add(pattern)
    assert len(hops) == 4


def test_the_islands_are_always_the_same():
    assert islands()[0] == ("Falia", 217, 31, "Lorra", 1483, 4842)


def test_more_questions_than_there_are_are_refused():
    with pytest.raises(InputError, match=r"data.train_size \+ data.held_out_size is 961"):
        Islands(train_size=705).train()
