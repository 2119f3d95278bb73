import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.configuration.targets import instantiate
from rl4p.data.math import Math

ROWS = [
    {"problem": "Half of 3?", "solution": r"It is $\boxed{\frac{3}{2}}$.", "level": "Level 1"},
    {"problem": "1 + 1?", "solution": r"Not \boxed{3}, but \boxed{2}."},
    {"problem": "2 + 2?", "solution": r"\boxed{4}"},
]


def test_the_reference_is_what_stands_in_the_last_box(write):
    data = Math(path=write(ROWS), held_out_size=1)
    rows = {row.question: row for row in (*data.train(), *data.held_out())}
    assert {question: row.answer for question, row in rows.items()} == {
        "Half of 3?": r"\frac{3}{2}",
        "1 + 1?": "2",
        "2 + 2?": "4",
    }
    assert rows["1 + 1?"].solution == r"Not \boxed{3}, but \boxed{2}."
    assert {row.task for row in rows.values()} == {"math"}


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"the larger is 2, so $\boxed 2$.", "2"),
        (r"$\boxed {12}$", "12"),
        (r"$\boxed\frac12$", r"\frac12"),
        (r"<think>\boxed{3}</think>It is \boxed{4}.", "4"),
        (r"<think>or \boxed{3}?</think>\boxed{4} and \fbox 5", "5"),
    ],
)
def test_the_reference_is_read_as_an_answer_is(write, solution, answer):
    row = {"problem": "?", "solution": solution}
    held_out = Math(path=write([row]), held_out_path=write([row], "test.jsonl")).held_out()
    assert held_out[0].answer == answer


@pytest.mark.parametrize("solution", [r"<think>\boxed{3}</think>It is 4.", r"\boxed{3}, \boxed{4"])
def test_a_box_that_is_no_answer_is_refused(write, solution):
    path = write([{"problem": "?", "solution": solution}] * 2)
    with pytest.raises(InputError, match="has no answer in"):
        Math(path=path, held_out_size=1).held_out()


def test_held_out_rows_of_their_own_have_references_too(write):
    data = Math(path=write(ROWS[:2]), held_out_path=write(ROWS[2:], "test.jsonl"))
    assert [row.answer for row in data.held_out()] == ["4"]
    assert len(data.train()) == 2


def test_a_solution_without_a_box_is_refused_unless_a_field_has_the_answer(write):
    path = write([{"problem": "1 + 1?", "solution": "It is 2.", "answer": "2"}] * 2)
    with pytest.raises(InputError, match=r"'1 \+ 1\?' has no answer in \\boxed\{\}"):
        Math(path=path, held_out_size=1).held_out()
    assert Math(path=path, reference_key="answer").held_out()[0].answer == "2"


def test_the_configuration_asks_for_boxes(write):
    config = compose(["data=math", f"data.path={write(ROWS)}", "data.held_out_size=1"])
    assert "\\boxed{}" in config.data.system_prompt
    data = instantiate(config.data)
    assert isinstance(data, Math)
    assert len(data.train()) == 2
