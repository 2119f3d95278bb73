import re

import pytest

from rl4p.data.answer import final_answer
from rl4p.data.letter_counting import LetterCounting, counting


def test_a_word_counted_by_hand():
    row = counting("r", "strawberry")
    assert (row.question, row.answer, row.task) == ("r in strawberry", "3", "letter_counting")
    assert row.solution == "s t r1 a w b e r2 r3 y #### 3"
    assert counting("x", "ab").solution == "a b #### 0"


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
