"""Tests files of JSON lines, CSV and Parquet, and the lines that are refused."""

import json
from dataclasses import replace

import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.configuration import compose
from rl4p.configuration.targets import instantiate
from rl4p.data import files as source
from rl4p.data.files import CSV, JSONLines, Math, Parquet, Preferences, parse_line


@pytest.mark.parametrize("kind", [JSONLines, CSV, Parquet])
def test_a_file_that_does_not_exist_is_named_with_its_key(kind, tmp_path):
    with pytest.raises(InputError, match=r"data\.path=/no/x cannot be read: No such file or dir"):
        kind(path="/no/x").train()
    with pytest.raises(InputError, match=r"data\.held_out_path=/no/x cannot be read: No such"):
        kind(path=str(tmp_path), held_out_path="/no/x").held_out()


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (JSONLines, b'{"question": "1+1?", "answer": "2"}\n'),
        (CSV, b"question,answer\n1+1?,2\n"),
    ],
)
def test_a_file_may_be_in_an_object_store(kind, content, url):
    address = f"{url}/rows"
    with pytest.raises(InputError, match=f"{address} does not exist"):
        kind(path=address).train()
    ObjectStore(address).write("", content)
    rows = kind(path=address, held_out_path=address)
    assert [row.question for row in (*rows.train(), *rows.held_out())] == ["1+1?", "1+1?"]


def test_a_folder_of_parquet_files_may_be_in_an_object_store(url, tmp_path):
    for name, question in (("b", "2?"), ("a", "1?")):
        table = pyarrow.table({"question": [question], "answer": ["3"]})
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    ObjectStore(url).upload(["a.parquet", "b.parquet"], tmp_path)
    rows = Parquet(path=url, held_out_path=url)
    assert [row.question for row in rows.train()] == ["1?", "2?"]


@pytest.mark.parametrize("kind", [JSONLines, CSV])
def test_a_folder_is_no_file(kind, tmp_path):
    with pytest.raises(InputError, match=r"data\.path=.* cannot be read: Is a directory"):
        kind(path=str(tmp_path)).train()


def test_an_object_is_read_also_after_a_byte_order_mark():
    assert parse_line(b"\xef\xbb\xbf" + b'{"a": [1, null]}', "here") == {"a": [1, None]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff", "here: not UTF-8."),
        (b"", "here: not JSON (Expecting value)."),
        (b"[1]", "here: a JSON object is expected, not list."),
        (b"[" * 10**5, "here: not JSON (maximum recursion depth exceeded"),
        (b'{"a": ' + b"9" * 5000 + b"}", "here: not JSON (Exceeds the limit (4300 digits)"),
    ],
    ids=range(5),
)
def test_anything_else_is_refused(line, said):
    with pytest.raises(InputError) as error:
        parse_line(line, "here")
    assert str(error.value).startswith(said)


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


@pytest.fixture
def read(tmp_path):
    def read(content, **options):
        path = tmp_path / "rows.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CSV(path=str(path), held_out_path=str(path), **options).train()

    return read


def test_all_fields_are_texts(read):
    content = '\ufeffquestion,answer,level\r\n"1,\n1",007,4\r\n\r\n"say ""x""\u2028?",2,5\r\n'
    first, second = read(content, metadata_keys=("level",))
    assert (first.question, first.answer, first.task) == ("1,\n1", "007", "csv")
    assert second.question == 'say "x"\u2028?'
    assert second.metadata == {"level": "5"}
    assert [q.answer for q in read(content, where={"level": 5})] == ["2"]


def test_another_delimiter(read):
    (question,) = read("question\tanswer\n1,1\t2\n", delimiter="\t")
    assert question.question == "1,1"
    for bad in ("", ",,", '"', "\n"):
        with pytest.raises(ValueError, match=r"delimiter=.* must be one character"):
            read("", delimiter=bad)


def test_long_fields(read):
    (question,) = read(f"question,answer\n{'1' * 200_000},2\n")
    assert len(question.question) == 200_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"data\.path=.* has no rows"),
        ("question,answer\n", r"data\.path=.* has no rows"),
        ("question,answer\n1,2\n\n3,4,5\n", r"rows\.csv, line 4: 3 fields, but 2 columns"),
        ('question,answer\n"a\nb",2\n3\n', r"rows\.csv, line 4: 1 fields, but 2 columns"),
        ('question,answer\n"a\nb",\n', r'rows\.csv, line 2: no text under "answer"'),
        ("question,answer\n1,2\n3, \n", r'rows\.csv, line 3: no text under "answer"'),
        (b"question,answer\n1,2\n\xff,4\n", r"rows\.csv, line 3: not UTF-8"),
        ('question,answer\n"1,2\n', r"rows\.csv, line 2: not CSV"),
        ("question,gold\n1,2\n", r"rows\.csv, line 1: no column \"answer\"; .*'gold'"),
        ("question,question\n1,2\n", r"the column names \['question'\] occur twice"),
    ],
    ids=range(10),
)
def test_a_bad_row_is_named_by_file_and_line_of_csv(read, content, message):
    with pytest.raises(InputError, match=message):
        read(content)


ROWS = [{"question": f"{n}+1?", "answer": f"#### {n + 1}", "level": n} for n in range(5)]


@pytest.fixture
def write_parquet(tmp_path):
    def write_parquet(rows, name="rows.parquet"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        table = rows if isinstance(rows, pyarrow.Table) else pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, path)
        return str(path)

    return write_parquet


@pytest.mark.parametrize(
    "value", [[b"x"], [{"bytes": b"x", "path": None}], {"bytes": None, "path": "x.png"}, "x", b"y"]
)
def test_pictures_in_a_column_are_refused(write_parquet, value):
    empty = {list: [], dict: {"bytes": None, "path": None}}.get(type(value))
    rows = [{"question": f"{n}?", "answer": "1", "images": empty} for n in range(3)]
    rows[2]["images"] = value
    kept = Parquet(path=write_parquet(rows), limit=2, held_out_size=1)
    assert len(kept.train()) == 1
    with pytest.raises(InputError, match='row 3: "images" is not empty, but only texts'):
        replace(kept, limit=None).train()


def test_a_file_has_the_questions_of_the_same_rows_as_json_lines(write_parquet, tmp_path):
    lines = tmp_path / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    options = {"task": "t", "held_out_size": 2, "metadata_keys": ("level",)}
    ours = Parquet(path=write_parquet(ROWS), **options)
    others = JSONLines(path=str(lines), **options)
    assert ours.train() == others.train()
    assert ours.held_out() == others.held_out()


def test_a_folder_of_files_in_the_order_of_their_names(write_parquet, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "BATCH", 2)
    for part, rows in (("b", ROWS[3:]), ("a", ROWS[:3])):
        write_parquet(rows, f"parts/{part}.parquet")
    data = Parquet(path=str(tmp_path / "parts"), held_out_path=write_parquet(ROWS))
    assert [q.question for q in data.train()] == [row["question"] for row in ROWS]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"data\.path=.*/empty has no rows"):
        Parquet(path=str(tmp_path / "empty")).train()


def test_an_array_of_messages_with_a_reference_inside_a_struct(write_parquet):
    prompt = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    row = {"prompt": prompt, "reward_model": {"style": "rule", "ground_truth": "2"}, "source": "s"}
    options = {"messages_key": "prompt", "answer_key": None, "task_key": "source"}
    for value in (prompt, json.dumps(prompt)):
        path = write_parquet([row | {"prompt": value}])
        data = Parquet(
            path=path, held_out_path=path, reference_key="reward_model.ground_truth", **options
        )
        (question,) = data.train()
        assert question.messages == tuple(prompt)
        assert (question.question, question.answer, question.task) == ("1+1?", "2", "s")


def test_the_tools_of_some_rows(write_parquet):
    messages, tools = [{"role": "user", "content": "1+1?"}], [{"type": "function", "name": "add"}]
    rows = [{"m": messages, "tools": tools}, {"m": [*messages, *messages], "tools": None}]
    path = write_parquet(rows)
    data = Parquet(path=path, held_out_path=path, messages_key="m", answer_key=None)
    assert [question.tools for question in data.train()] == [tuple(tools), None]


def test_a_bad_row_is_named_by_file_and_row(write_parquet, monkeypatch):
    monkeypatch.setattr(source, "BATCH", 2)
    with pytest.raises(InputError, match=r'rows\.parquet, row 4: no text under "answer"'):
        Parquet(path=write_parquet([*ROWS[:3], {"question": "?", "answer": None}])).train()
    broken = pyarrow.array([b"1", b"2", b"3", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    table = pyarrow.table({"question": broken, "answer": ["1"] * 4})
    with pytest.raises(InputError, match=r"rows\.parquet, row 4: not UTF-8"):
        Parquet(path=write_parquet(table)).train()


def test_a_missing_column_is_named_with_those_that_are_there(write_parquet):
    with pytest.raises(InputError, match=r'rows\.parquet: no column "gold"; .*\'question\', \'ans'):
        Parquet(path=write_parquet(ROWS), reference_key="gold").train()


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    for content in (b"", b"question,answer\n1,2\n" * 9):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"rows\.parquet: not a readable Parquet file"):
            Parquet(path=str(path)).train()


def test_arguments_of_other_rows_are_left_out(write_parquet):
    def row(**arguments):
        call = {"function": {"name": "find", "arguments": arguments}}
        asked = {"role": "assistant", "content": "", "tool_calls": [call]}
        return {"m": [{"role": "user", "content": str(arguments), "tool_calls": None}, asked]}

    path = write_parquet([row(city="Paris"), row(days=1)])
    data = Parquet(path=path, held_out_path=path, messages_key="m", answer_key=None)
    rows = [row.messages or () for row in data.train()]
    calls = [messages[1]["tool_calls"][0]["function"]["arguments"] for messages in rows]
    assert calls == [{"city": "Paris"}, {"days": 1}]
    assert "tool_calls" not in rows[0][0]


MATH_ROWS = [
    {"problem": "Half of 3?", "solution": r"It is $\boxed{\frac{3}{2}}$.", "level": "Level 1"},
    {"problem": "1 + 1?", "solution": r"Not \boxed{3}, but \boxed{2}."},
    {"problem": "2 + 2?", "solution": r"\boxed{4}"},
]


def test_the_reference_is_what_stands_in_the_last_box(write):
    data = Math(path=write(MATH_ROWS), held_out_size=1)
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
    data = Math(path=write(MATH_ROWS[:2]), held_out_path=write(MATH_ROWS[2:], "test.jsonl"))
    assert [row.answer for row in data.held_out()] == ["4"]
    assert len(data.train()) == 2


def test_a_solution_without_a_box_is_refused_unless_a_field_has_the_answer(write):
    path = write([{"problem": "1 + 1?", "solution": "It is 2.", "answer": "2"}] * 2)
    with pytest.raises(InputError, match=r"'1 \+ 1\?' has no answer in \\boxed\{\}"):
        Math(path=path, held_out_size=1).held_out()
    assert Math(path=path, reference_key="answer").held_out()[0].answer == "2"


def test_the_configuration_asks_for_boxes(write):
    config = compose(["data=math", f"data.path={write(MATH_ROWS)}", "data.held_out_size=1"])
    assert "\\boxed{}" in config.data.system_prompt
    data = instantiate(config.data)
    assert isinstance(data, Math)
    assert len(data.train()) == 2


def preferences_row(prompt, chosen, rejected, **others):
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
    } | others


PREFERENCES_ROWS = [
    preferences_row("2+2", "so #### 4", "5"),
    preferences_row("2+2", "so #### 4", "6"),
    preferences_row("2+2", "so #### 4", "5"),
]
PREFERENCES_ROWS.append(preferences_row("1+1", "2", "3", tools=[{"name": "add"}]))


def preferences_write(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


def test_each_pair_of_a_prompt_is_kept_once(tmp_path, caplog):
    data = Preferences(
        path=preferences_write(tmp_path / "a.jsonl", PREFERENCES_ROWS), held_out_path=str(tmp_path)
    )
    first, second, other = data.train()
    assert [each.pair[1]["content"] for each in (first, second, other)] == ["5", "6", "3"]
    assert len({first.id, second.id, other.id}) == 3
    assert (first.question, first.answer, first.solution) == ("2+2", "4", "so #### 4")
    assert first.messages == ({"role": "user", "content": "2+2"},)
    assert other.tools == ({"name": "add"},)
    assert "1 repeated rows skipped" in caplog.text


def test_a_prompt_is_held_out_with_all_of_its_pairs(tmp_path):
    data = Preferences(
        path=preferences_write(tmp_path / "a.jsonl", PREFERENCES_ROWS), held_out_size=1
    )
    (held_out,) = data.held_out()
    assert held_out.messages not in [each.messages for each in data.train()]


def test_tables_have_pairs_too(tmp_path):
    rows = [{"better": "The sky is blue", "worse": "The sky is red", "n": 1}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("better,worse,n\nThe sky is blue,The sky is red,1\n")
    keys = {"chosen_key": "better", "rejected_key": "worse", "held_out_path": "none"}
    for data in (
        Parquet(path=str(tmp_path / "a.parquet"), **keys),
        CSV(path=str(tmp_path / "a.csv"), **keys),
    ):
        (question,) = data.train()
        assert question.question == "The sky is"
        assert question.pair == (" blue", " red")
    chats = [PREFERENCES_ROWS[0], PREFERENCES_ROWS[3]]  # a row without tools has a null
    parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "b.parquet")
    keys = {"chosen_key": "chosen", "rejected_key": "rejected", "held_out_path": "none"}
    one, other = Parquet(path=str(tmp_path / "b.parquet"), question_key="prompt", **keys).train()
    assert one.tools is None
    assert other.pair == ({"role": "assistant", "content": "2"}, other.pair[1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"chosen_key": "chosen"}, "chosen_key and rejected_key name a pair: set both, or neither"),
        (
            {"chosen_key": "a", "rejected_key": "b", "messages_key": "c"},
            "messages_key has no effect with chosen_key",
        ),
        (
            {"chosen_key": "a", "rejected_key": "b", "answer_key": None},
            "answer_key has no effect with chosen_key",
        ),
    ],
)
def test_keys_without_an_effect_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        JSONLines(path="a.jsonl", **options)


def test_a_row_without_a_pair_is_named(tmp_path):
    path = preferences_write(
        tmp_path / "a.jsonl", [PREFERENCES_ROWS[0], {"prompt": "1", "chosen": "2"}]
    )
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: .chosen. and .rejected. must both be"):
        Preferences(path=path).train()
