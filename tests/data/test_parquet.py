import json

import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.errors import InputError
from rl4p.data import parquet as source
from rl4p.data.jsonl import JSONLines
from rl4p.data.parquet import Parquet

ROWS = [{"question": f"{n}+1?", "answer": f"#### {n + 1}", "level": n} for n in range(5)]


@pytest.fixture
def write(tmp_path):
    def write(rows, name="rows.parquet"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, path)
        return str(path)

    return write


def test_a_file_has_the_questions_of_the_same_rows_as_json_lines(write, tmp_path):
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = {"task": "t", "held_out_size": 2, "metadata_keys": ("level",)}
    ours, others = Parquet(path=write(ROWS), **options), JSONLines(path=str(lines), **options)
    assert ours.train() == others.train()
    assert ours.held_out() == others.held_out()


def test_a_folder_of_files_in_the_order_of_their_names(write, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BATCH", 2)
    for part, rows in (("b", ROWS[3:]), ("a", ROWS[:3])):
        write(rows, f"parts/{part}.parquet")
    data = Parquet(path=str(tmp_path / "parts"), held_out_path=write(ROWS))
    assert [q.question for q in data.train()] == [row["question"] for row in ROWS]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"data\.path=.*/empty has no rows"):
        Parquet(path=str(tmp_path / "empty")).train()


def test_an_array_of_messages_with_a_reference_inside_a_struct(write):
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    row = {"prompt": prompt, "reward_model": {"style": "rule", "ground_truth": "2"}, "source": "s"}
    options = {"messages_key": "prompt", "answer_key": None, "task_key": "source"}
    for value in (prompt, json.dumps(prompt)):
        path = write([row | {"prompt": value}])
        data = Parquet(
            path=path, held_out_path=path, reference_key="reward_model.ground_truth", **options
        )
        (question,) = data.train()
        assert question.messages == tuple(prompt)
        assert (question.question, question.answer, question.task) == ("1+1?", "2", "s")


def test_the_tools_of_some_rows(write):
    messages, tools = [{"role": "user", "content": "1+1?"}], [{"type": "function", "name": "add"}]
    rows = [{"m": messages, "tools": tools}, {"m": [*messages, *messages], "tools": None}]
    path = write(rows)
    data = Parquet(path=path, held_out_path=path, messages_key="m", answer_key=None)
    assert [question.tools for question in data.train()] == [tuple(tools), None]


def test_a_bad_row_is_named_by_file_and_row(write, monkeypatch):
    monkeypatch.setattr(source, "BATCH", 2)
    with pytest.raises(InputError, match=r'rows\.parquet, row 4: no text under "answer"'):
        Parquet(path=write([*ROWS[:3], {"question": "?", "answer": None}])).train()
    broken = pyarrow.array([b"1", b"2", b"3", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    table = pyarrow.table({"question": broken, "answer": ["1"] * 4})
    with pytest.raises(InputError, match=r"rows\.parquet, row 4: not UTF-8"):
        Parquet(path=write(table)).train()


def test_a_missing_column_is_named_with_those_that_are_there(write):
    with pytest.raises(InputError, match=r'rows\.parquet: no column "gold"; .*\'question\', \'ans'):
        Parquet(path=write(ROWS), reference_key="gold").train()


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    for content in (b"", b"question,answer\n1,2\n" * 9):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"rows\.parquet: not a readable Parquet file"):
            Parquet(path=str(path)).train()


def test_arguments_of_other_rows_are_left_out(write):
    def row(**arguments):
        call = {"function": {"name": "find", "arguments": arguments}}
        asked = {"role": "assistant", "content": "", "tool_calls": [call]}
        return {"m": [{"role": "user", "content": str(arguments), "tool_calls": None}, asked]}

    path = write([row(city="Paris"), row(days=1)])
    data = Parquet(path=path, held_out_path=path, messages_key="m", answer_key=None)
    rows = [row.messages or () for row in data.train()]
    calls = [messages[1]["tool_calls"][0]["function"]["arguments"] for messages in rows]
    assert calls == [{"city": "Paris"}, {"days": 1}]
    assert "tool_calls" not in rows[0][0]
