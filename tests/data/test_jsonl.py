import json

import pytest

from rl4p.base.errors import InputError
from rl4p.data.jsonl import JSONLines


def row(question="1+1?", answer="One and one. #### 2", **more):
    return json.dumps({"question": question, "answer": answer} | more)


def test_a_row_in_the_format_of_gsm8k(write):
    data = JSONLines(path=write([row(), "", row("2+2?", "4\n")]), held_out_size=0, task="gsm8k")
    first, second = data.train()
    assert (first.question, first.answer, first.task) == ("1+1?", "2", "gsm8k")
    assert first.solution == "One and one. #### 2"
    assert second.answer == "4"  # without a marker, the whole answer


def test_a_byte_order_mark_and_foreign_line_ends_are_no_fault(write):
    path = write(b"\xef\xbb\xbf" + row("1+1?").encode() + b"\r\n" + row("2+2?").encode() + b"\r\n")
    assert [q.question for q in JSONLines(path=path, held_out_size=0).train()] == ["1+1?", "2+2?"]


def test_other_names_of_the_fields(write):
    path = write(json.dumps({"problem": "1+1?", "gold": "2"}))
    data = JSONLines(path=path, question_key="problem", answer_key="gold", held_out_size=0)
    assert [(q.question, q.answer) for q in data.train()] == [("1+1?", "2")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("no json", r"not JSON \(Expecting value\)"),
        ('{"question": "1', r"not JSON \(Unterminated string"),
        (b'{"question": "\xff", "answer": "1"}', "not UTF-8"),
        (b'{"question": "\xed\xa0\x80", "answer": "1"}', "not UTF-8"),
        (row("\ud800"), "not UTF-8"),
        (row(answer="\udfff"), "not UTF-8"),
        ("[" * 100_000, "not JSON"),
        ('{"question": ' + "9" * 5000 + "}", "not JSON"),
        ("[1]", "a JSON object is expected, not list"),
        ("null", "a JSON object is expected, not NoneType"),
        ('{"answer": "2"}', r"""no text under "question": the row has the fields \['answer'\]"""),
        ('{"question": "1+1?"}', 'no text under "answer"'),
        (row(question=""), 'no text under "question"'),
        (row(answer=" \n"), 'no text under "answer"'),
        (row(answer=["2"]), 'the value of "answer" is a list, and a text is expected'),
        (row(answer=None), 'no text under "answer"'),
    ],
    ids=range(16),
)
def test_a_bad_row_is_named_by_file_and_line(write, bad, message):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path = write(b"\n".join([row().encode(), b"", bad, b"also bad"]))
    for use in (JSONLines(path=path).train, JSONLines(path=path).held_out):
        with pytest.raises(InputError, match=rf"rows\.jsonl, line 3: {message}") as error:
            use()
        assert len(str(error.value)) < 400


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows_is_named_with_its_key(write, content):
    good, bad = write([row()], "good.jsonl"), write(content)
    with pytest.raises(InputError, match=rf"data\.path={bad} has no rows"):
        JSONLines(path=bad).train()
    with pytest.raises(InputError, match=rf"data\.held_out_path={bad} has no rows"):
        JSONLines(path=good, held_out_path=bad).held_out()


def test_held_out_rows_are_apart_and_do_not_depend_on_the_order_of_the_file(write):
    rows = [row(f"{n}+1?", f"#### {n + 1}") for n in range(20)]
    data, turned = (
        JSONLines(path=write(lines, name), held_out_size=6)
        for name, lines in (("a.jsonl", rows), ("b.jsonl", rows[::-1]))
    )
    held_out, train = data.held_out(), data.train()
    assert (len(held_out), len(train)) == (6, 14)
    assert {q.id for q in held_out}.isdisjoint(q.id for q in train)
    assert held_out == turned.held_out()


def test_a_question_that_stands_twice_is_one_and_counted(write, caplog):
    path = write([row("1+1?", "2"), row("2+2?", "4"), row("1+1?", "3"), row("1+1?", "2")])
    data = JSONLines(path=path, held_out_size=1)
    rows = [*data.train(), *data.held_out()]
    assert sorted((q.question, q.answer) for q in rows) == [("1+1?", "2"), ("2+2?", "4")]
    assert "rows.jsonl: 2 repeated questions skipped" in caplog.text


def test_a_file_of_its_own_to_hold_out(write):
    """By default every row of both files is used."""
    path = write([row(f"{n}?") for n in range(3)])
    other = write([row(f"{n}!") for n in range(300)], "b.jsonl")
    data = JSONLines(path=path, held_out_path=other)
    assert len(data.train()) == 3
    assert [q.question for q in data.held_out()] == [f"{n}!" for n in range(300)]
    with pytest.raises(ValueError, match="held_out_size cannot be combined with held_out_path"):
        JSONLines(path=path, held_out_path=other, held_out_size=1)


def test_without_one_256_rows_are_held_out(write):
    data = JSONLines(path=write([row(f"{n}?") for n in range(300)]))
    assert (len(data.held_out()), len(data.train())) == (256, 44)


def test_holding_everything_out_is_refused(write):
    with pytest.raises(InputError, match=r"data\.held_out_size=256 holds out every row"):
        JSONLines(path=write([row()])).train()


def test_several_answers_to_a_question_are_rows_of_their_own(write, caplog):
    lines = [("1+1?", "so 2"), ("2+2?", "4"), ("1+1?", "2"), ("1+1?", "so 2")]
    path = write([row(*line) for line in lines])
    other = write([row("1+1?", "a"), row("1+1?", "b")], "b.jsonl")
    data = JSONLines(path=path, held_out_path=other, several_answers=True)
    rows = data.train()
    assert sorted((q.question, q.solution) for q in rows) == [
        ("1+1?", "2"), ("1+1?", "so 2"), ("2+2?", "4"),
    ]  # fmt: skip
    assert len({q.id for q in rows}) == 3
    for row_alone in JSONLines(path=path, held_out_path=other).train():
        assert row_alone in rows
    assert "1 repeated rows skipped." in caplog.text
    assert "2 repeated questions skipped (data.several_answers=true keeps" in caplog.text
    assert [q.solution for q in data.held_out()] == ["a"]  # an evaluation asks a question once


def test_a_question_with_several_answers_is_on_one_side_of_the_split(write):
    lines = [row(f"{n}?", answer) for answer in ("a", "b") for n in range(20)]
    data = JSONLines(path=write(lines), held_out_size=5, several_answers=True)
    held_out, train = data.held_out(), data.train()
    assert (len(held_out), len(train)) == (5, 30)
    assert {q.question for q in held_out}.isdisjoint(q.question for q in train)
    assert {q.solution for q in held_out} == {"a"}


def test_a_reference_answer_of_its_own(write):
    line = row("1+1?", "it is #### 3", gold=" 2 ")
    (question,) = JSONLines(path=write([line]), reference_key="gold", held_out_size=0).train()
    assert (question.answer, question.solution) == ("2", "it is #### 3")
    with pytest.raises(InputError, match=r'no text under "gold".*data\.reference_key'):
        JSONLines(path=write([row()]), reference_key="gold").train()
