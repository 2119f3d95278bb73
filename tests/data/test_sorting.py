import re

import pytest

from rl4p.data.answer import final_answer
from rl4p.data.sorting import Sorting, sorting


def test_a_list_sorted_by_hand():
    row = sorting([31, 7, 12])
    assert (row.question, row.answer, row.task) == ("sort 31 7 12", "7 12 31", "sorting")
    assert row.solution == "7<31 12, 12<31 #### 7 12 31"
    assert sorting([5, 5]).solution == "5<5 #### 5 5"


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
