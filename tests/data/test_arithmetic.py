import re

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.data.answer import final_answer, same_answer
from rl4p.data.arithmetic import Arithmetic, addition


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
