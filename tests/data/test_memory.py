import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.data.memory import Memory

ROWS = [{"question": f"{n}+1?", "answer": f"#### {n + 1}"} for n in range(6)]


def test_rows_and_functions_that_return_them():
    for rows in (ROWS, tuple(ROWS), lambda: iter(ROWS)):
        data = Memory(rows=rows, held_out_rows=ROWS[:1])
        assert [(q.question, q.answer, q.task) for q in data.train()[:2]] == [
            ("0+1?", "1", "memory"),
            ("1+1?", "2", "memory"),
        ]
        assert len(data.train()) == 6
        assert [q.question for q in data.held_out()] == ["0+1?"]


def test_rows_in_the_configuration():
    config = compose(["data=memory", "data.rows=[{question: 1+1?, answer: '2'}]"])
    (question,) = instantiate(config.data).held_out()
    assert (question.question, question.answer) == ("1+1?", "2")


def test_a_bad_row_is_named_by_its_number():
    for bad, message in (({"question": "x"}, 'no text under "answer"'), ("x", "a mapping is exp")):
        with pytest.raises(InputError, match=rf"data\.rows, row 2: {message}"):
            Memory(rows=[ROWS[0], bad]).train()
    with pytest.raises(InputError, match=r"data\.rows has no rows"):
        Memory(rows=[]).train()
    with pytest.raises(InputError, match=r"data\.held_out_rows has no rows"):
        Memory(rows=ROWS, held_out_rows=[]).held_out()
