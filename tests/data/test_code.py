import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.configuration.targets import instantiate
from rl4p.data.code import Code
from rl4p.reward.code import code_of

CALLS = {
    "question": "Write f(x), the square of x.",
    "tests": ["assert f(3) == 9"],
    "setup": "import math",
    "answer": "#### of one line\ndef f(x): return x * x\n",
}
OUTPUTS = {"question": "Print the sum.", "tests": [{"input": "1 2", "output": "3"}]}


def test_rows_have_the_metadata_that_the_term_reads(write):
    path = write([CALLS, OUTPUTS, {**OUTPUTS, "question": "?", "answer": None, "setup": None}])
    calls, outputs, nulls = Code(path=path, held_out_path=path).train()
    assert calls.metadata == {"tests": ["assert f(3) == 9"], "setup": "import math"}
    assert outputs.metadata == {"tests": [{"input": "1 2", "output": "3"}], "setup": ""}
    assert nulls.metadata == outputs.metadata
    assert (outputs.answer, outputs.solution) == (nulls.answer, nulls.solution) == ("", None)
    assert calls.answer == "#### of one line\ndef f(x): return x * x"
    assert calls.solution == CALLS["answer"]
    assert {row.task for row in (calls, outputs)} == {"code"}


@pytest.mark.parametrize(
    "tests",
    [
        *([], None, "assert f(3) == 9", [1], ["assert True", {"input": "", "output": ""}]),
        *([{"input": "1"}], [{"input": 1, "output": "1"}], {"input": "1", "output": "1"}),
    ],
)
def test_a_row_without_tests_that_can_run_is_refused_with_its_line(write, tests):
    path = write([CALLS, {"question": "x", "tests": tests}])
    with pytest.raises(InputError, match=r'rows\.jsonl, line 2: no tests under "tests": write a'):
        Code(path=path).train()


def test_a_row_without_the_field_is_refused_with_its_line(write):
    path = write([CALLS, {"question": "x"}])
    with pytest.raises(InputError, match=r"line 2: no tests .* \(the row has the fields \['q"):
        Code(path=path).train()


def test_a_set_up_that_is_no_text_is_refused(write):
    with pytest.raises(InputError, match=r'line 1: no text under "setup": write Python code\.'):
        Code(path=write([{**CALLS, "setup": ["import math"]}])).train()


def test_other_names_of_the_fields(write):
    row = {"text": "Square x.", "test_list": ["assert f(3) == 9"], "code": "?", "kind": "easy"}
    path = write([{**row, "before": "import re", "result": "9"}])
    data = Code(
        path=path,
        held_out_path=path,
        question_key="text",
        tests_key="test_list",
        setup_key="before",
        answer_key="code",
        reference_key="result",
        metadata_keys=("kind",),
    )
    (question,) = data.train()
    assert (question.question, question.solution, question.answer) == ("Square x.", "?", "9")
    assert question.metadata == {
        "kind": "easy",
        "tests": ["assert f(3) == 9"],
        "setup": "import re",
    }
    assert data.held_out() == [question]


def test_generated_questions_are_held_out_and_the_same_in_every_run():
    data = Code()
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (944, 256)
    assert len({row.question for row in (*train, *held_out)}) == 1200
    assert Code().train() == train
    assert len(Code(held_out_size=10).held_out()) == 10


def test_the_answers_of_generated_questions_pass_their_tests_and_no_others():
    rows = Code().train()
    for row in rows:
        assert passes(row, row) == [True] * 4
    forms = rows[:3]
    for row in forms:
        assert [all(passes(other, row)) for other in forms] == [other is row for other in forms]


def passes(answered, row) -> list[bool]:
    """Returns which tests of a row the answer of another row passes."""
    names: dict = {}
    exec(code_of(answered.solution), names)
    return [eval(test.removeprefix("assert "), names) for test in row.metadata["tests"]]


def test_too_many_held_out_questions_are_refused():
    with pytest.raises(InputError, match=r"holds out every row of the generated questions: set"):
        Code(held_out_size=1200).train()


def test_the_configuration_needs_no_file():
    data = instantiate(compose(["data=code", "reward.terms.format.weight=0"]).data)
    assert isinstance(data, Code)
    row = data.held_out()[0]
    assert row.question.startswith("Write a Python function f(x) that returns ")
    assert "```python" in (data.system_prompt or "")
