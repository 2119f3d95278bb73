"""Tests of what all sources of rows have in common, with rows in memory."""

import json

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.data.messages import warn_once
from rl4p.data.rows import Memory, first_of_each

LEVELS = [
    {"question": f"{n}?", "answer": f"so {n} #### {n}", "level": n % 3, "of": {"kind": "ab"[n % 2]}}
    for n in range(12)
]


def asked(rows=LEVELS, **options):
    data = Memory(rows=rows, held_out_rows=rows[:1], **options)
    return [question.question for question in data.train()]


def one(row, **options):
    (question,) = Memory(rows=[row], held_out_rows=[row], **options).train()
    return question


def test_rows_are_chosen_by_the_values_of_their_fields():
    assert asked(where={"level": 2}) == ["2?", "5?", "8?", "11?"]
    assert asked(where={"level": (1, 2), "of.kind": "a"}) == ["2?", "4?", "8?", "10?"]
    with pytest.raises(InputError, match=r"data\.where=\{'level': 7\} selects none of the 12 rows"):
        asked(where={"level": 7})
    with pytest.raises(InputError, match=r'data\.rows, row 1: no "grade", which data\.where names'):
        asked(where={"grade": 7})


@pytest.mark.parametrize(
    ("where", "absent"),
    [
        ({"level": [1, 7]}, ["level=7"]),
        ({"level": [1, "1", False]}, ["level=1", "level=False"]),
        ({"level": [1, 8, 9]}, ["level=8", "level=9"]),
        ({"level": [2], "of.kind": ["a", "c"]}, ["of.kind=c"]),
        ({"level": [1, 2]}, []),
        ({"level": 1}, []),
        ({"level": [1, None]}, ["level=None"]),
    ],
)
def test_a_wanted_value_that_no_row_has_is_named(caplog, where, absent):
    asked(where=where)
    lines = [each.getMessage() for each in caplog.records if "no row has" in each.getMessage()]
    expected = [f"data.rows: no row has data.where.{each}." for each in absent]
    assert [line for line in lines if line.startswith("data.rows")] == expected


def test_a_value_that_later_rows_may_have_is_not_named(caplog):
    asked(limit=1, where={"level": [0, 7]})
    assert "data.rows: no row has" not in caplog.text


def test_a_row_that_is_not_chosen_may_be_unsuitable():
    assert asked([*LEVELS, {"level": 9}], where={"level": 2}) == ["2?", "5?", "8?", "11?"]


def test_rows_are_skipped_and_limited_after_the_choice():
    assert asked(limit=2) == ["0?", "1?"]
    assert asked(skip=10) == ["10?", "11?"]
    assert asked(skip=1, limit=2, where={"level": 2}) == ["5?", "8?"]
    assert asked(limit=50) == asked()
    with pytest.raises(InputError, match=r"data\.skip=12 leaves none of the 12 rows of data\.rows"):
        asked(skip=12)


def test_held_out_rows_of_their_own_are_chosen_but_not_limited():
    data = Memory(rows=LEVELS, held_out_rows=LEVELS, skip=3, limit=1, where={"level": 2})
    assert [q.question for q in data.held_out()] == ["2?", "5?", "8?", "11?"]
    assert [q.question for q in data.train()] == ["11?"]


def test_questions_are_held_out_of_the_limited_rows():
    data = Memory(rows=LEVELS, limit=6, held_out_size=2)
    both = [*data.train(), *data.held_out()]
    assert sorted(q.question for q in both) == [f"{n}?" for n in range(6)]
    assert len(data.held_out()) == 2


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("<think>is it #### 3?</think>so 4 #### 4", "4"),
        ("<think>is it #### 3?</think>Paris", "Paris"),
        ("is it #### 3?</think>\nParis\n", "Paris"),
        ("#### 3", "3"),
    ],
)
def test_the_reference_answer_follows_the_thoughts(answer, reference):
    row = one({"question": "?", "answer": answer})
    assert (row.answer, row.solution) == (reference, answer)


def test_fields_for_graders():
    question = one(LEVELS[4], metadata_keys=("level", "of.kind"))
    assert question.metadata == {"level": 1, "of.kind": "a"}
    with pytest.raises(InputError, match=r'row 1: no "tests" \(data\.metadata_keys\)'):
        one(LEVELS[4], metadata_keys=("tests",))


def test_a_reference_may_be_a_number():
    row = {"question": "?", "answer": "so", "gold": 42}
    assert one(row, reference_key="gold").answer == "42"
    assert one(row, reference_key="gold", answer_key=None).solution is None
    with pytest.raises(InputError, match='the value of "gold" is true or false'):
        one(row | {"gold": True}, reference_key="gold")
    assert one(row | {"answer": 42}).answer == "42"


def test_rows_of_several_tasks():
    rows = [{"question": "?", "answer": "1", "source": name} for name in ("b", "a", " a ")]
    questions = Memory(rows=rows, held_out_rows=rows, task_key="source").train()
    assert [q.task for q in questions] == ["b", "a"]
    assert [q.id.split("/")[0] for q in questions] == ["b", "a"]
    with pytest.raises(InputError, match='row 1: no text under "task"'):
        Memory(rows=rows, task_key="task").train()


def test_held_out_questions_are_of_all_tasks():
    """They are chosen by the hash of the question, and not by the name of the task."""
    rows = [
        {"question": f"{n}?", "answer": "1", "source": name}
        for n in range(30)
        for name in ("a", "b")
    ]
    data = Memory(rows=rows, held_out_size=20, task_key="source")
    assert {q.task for q in data.held_out()} == {"a", "b"}
    assert len(data.train()) == 40


def test_tags_are_removed_from_the_question_by_choice():
    row = {"question": "<think>1+1</think>?", "answer": "<answer>2</answer>"}
    assert one(row).question == "<think>1+1</think>?"
    question = one(row, strip_tags=True)
    assert (question.question, question.answer) == ("1+1?", "<answer>2</answer>")
    with pytest.raises(InputError, match='row 1: "question" has only tags'):
        one(row | {"question": "<think>"}, strip_tags=True)


CONVERSATION = [
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2?"},
]
ANSWER = {"role": "assistant", "content": "so #### 4"}


def test_a_conversation_and_the_answer_at_its_end():
    options = {"messages_key": "messages", "answer_key": None}
    question = one({"messages": [*CONVERSATION, ANSWER]}, **options)
    assert question.messages == (*CONVERSATION, ANSWER)
    assert question.prompt_messages() == CONVERSATION
    assert (question.question, question.solution, question.answer) == ("2+2?", "so #### 4", "4")
    open_ended = one({"messages": CONVERSATION}, **options)
    assert (open_ended.solution, open_ended.answer) == (None, "")
    assert open_ended.id == question.id  # the answer is no part of the prompt
    assert one({"messages": CONVERSATION[2:]}, **options).id != question.id


def test_a_conversation_with_an_answer_beside_it():
    row = {"chat": CONVERSATION, "answer": "#### 5", "truth": {"value": 4}}
    question = one(row, messages_key="chat", reference_key="truth.value")
    assert (question.solution, question.answer) == ("#### 5", "4")
    with pytest.raises(InputError, match=r'no text under "answer".*data\.answer_key, which null'):
        one({"chat": CONVERSATION}, messages_key="chat")
    with pytest.raises(InputError, match='row 1: no text under "messages"'):
        one(row, messages_key="messages")
    with pytest.raises(InputError, match=r'data\.rows, row 1, "answer": the text is not a list'):
        one(row, messages_key="answer")


def test_the_tools_of_a_row_belong_to_its_prompt():
    options = {"messages_key": "m", "answer_key": None}
    without = one({"m": CONVERSATION}, **options)
    tools = ({"type": "function", "function": {"name": "add"}},)
    for key in ("tools", "functions"):
        question = one({"m": CONVERSATION, key: list(tools)}, tools_key=key, **options)
        assert question.tools == tools
        assert question.id != without.id
    assert without.tools is None


SYSTEM = {"role": "system", "content": "Be brief."}


SHAREGPT = [
    {"from": "human" if message["role"] == "user" else "gpt", "value": message["content"]}
    for message in CONVERSATION
]


@pytest.mark.parametrize("form", [CONVERSATION, SHAREGPT, json.dumps(CONVERSATION)])
@pytest.mark.parametrize("key", ["system", "instruction", "of.it"])
def test_a_system_message_beside_a_conversation_begins_it(key, form):
    row = {"m": form, key.partition(".")[0]: {"it": "Be brief."} if "." in key else "Be brief."}
    question = one(row, messages_key="m", answer_key=None, system_key=key)
    assert question.prompt_messages("other") == [SYSTEM, *CONVERSATION]
    assert question.id == one({"m": [SYSTEM, *CONVERSATION]}, messages_key="m", answer_key=None).id


@pytest.mark.parametrize("text", [None, "", " "])
def test_an_empty_system_message_is_none(text):
    question = one({"m": CONVERSATION, "system": text}, messages_key="m", answer_key=None)
    assert question.prompt_messages() == list(CONVERSATION)


def test_a_system_message_that_is_not_read_is_named(caplog):
    warn_once.cache_clear()
    row = {"m": [SYSTEM, *CONVERSATION], "system": "Be brief."}
    assert one(row, messages_key="m", answer_key=None).messages[0] == SYSTEM
    assert not caplog.text
    one(row | {"system": "Add."}, messages_key="m", answer_key=None)
    assert "data.system_key) is not read where" in caplog.text
    one({"question": "1+1?", "answer": "2", "system": "Be brief."})
    assert 'the field "system" is not read: set data.system_key' in caplog.text
    one({"m": CONVERSATION, "system_prompt": "No."}, messages_key="m", answer_key=None)
    assert 'the field "system_prompt" is not read: set' in caplog.text
    with pytest.raises(InputError, match=r'row 1, "system": a text is expected, not int'):
        one(row | {"system": 3}, messages_key="m", answer_key=None)


@pytest.mark.parametrize(
    "name",
    ["System", "system_message", "systemPrompt", "System Prompt", "system-instruction", "SYSTEM"],
)
def test_a_system_message_of_any_name_that_is_not_read_is_named(caplog, name):
    warn_once.cache_clear()
    row = {"m": CONVERSATION, name: "Be brief.", "systems": "a", "ecosystem": "b"}
    one(row, messages_key="m", answer_key=None)
    (said,) = caplog.messages
    assert f'the field "{name}" is not read: set data.system_key={name} with' in said
    caplog.clear()
    for other in (row | {name: " "}, row | {name: None}):
        one(other, messages_key="m", answer_key=None)
    question = one(row, messages_key="m", answer_key=None, system_key=name)
    assert question.messages[0] == SYSTEM
    assert not caplog.text


@pytest.mark.parametrize("key", ["images", "image", "videos", "audio"])
@pytest.mark.parametrize("value", [["x.png"], "x.png", b"y", [{"bytes": b"x"}], {"path": "x"}])
def test_a_row_with_media_is_refused(key, value):
    row = {"question": "1?", "answer": "2", key: value}
    with pytest.raises(InputError, match=f'row 1: "{key}" is not empty, but only texts'):
        one(row)
    with pytest.raises(InputError, match="only texts"):
        one({"m": CONVERSATION, key: value}, messages_key="m", answer_key=None)
    assert one(row, metadata_keys=(key,)).metadata == {key: value}


@pytest.mark.parametrize("value", [None, " ", [], [None], [b""], {"bytes": None, "path": None}])
def test_empty_media_are_none(value):
    assert one({"question": "1?", "answer": "2", "images": value}).answer == "2"


WRONG = {"role": "assistant", "content": "#### 9"}


@pytest.mark.parametrize("form", [list, tuple, json.dumps])
def test_an_answer_may_be_messages_after_the_conversation(form):
    prompt = [CONVERSATION[0], WRONG, CONVERSATION[0]]
    value = prompt if form is not json.dumps else json.dumps(prompt)
    row = {"prompt": value, "completion": form([ANSWER])}
    question = one(row, messages_key="prompt", answer_key="completion")
    assert question.messages == (prompt[0], WRONG | {"train": False}, prompt[2], ANSWER)
    assert question.solution == ANSWER["content"]
    assert question.prompt_messages()[-1] == CONVERSATION[0]


RESULT = {"role": "tool", "content": "3", "tool_call_id": "a"}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([{"from": "gpt", "value": "so #### 4"}], [ANSWER]),
        ([ANSWER | {"content": [{"type": "text", "text": "so #### 4"}]}], [ANSWER]),
        ([ANSWER | {"reasoning_content": "hm"}], [ANSWER | {"reasoning_content": "hm"}]),
        ([ANSWER, CONVERSATION[0], ANSWER], [ANSWER, CONVERSATION[0], ANSWER]),
        ([WRONG | {"weight": 0}, CONVERSATION[0], ANSWER], None),
        ([{"role": "user", "content": "Yes?"}, ANSWER], None),
    ],
)
def test_the_messages_of_an_answer_have_any_form_of_conversations(given, read):
    row = {"prompt": CONVERSATION, "completion": given, "system": "Be brief."}
    question = one(row, messages_key="prompt", answer_key="completion")
    before = [x | ({"train": False} if x["role"] == "assistant" else {}) for x in CONVERSATION]
    assert question.messages == (SYSTEM, *before, *(read or given))
    assert question.solution == ANSWER["content"]


def test_an_answer_may_be_calls_and_their_results():
    calling = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", **called(n=2)[0]}]}
    row = {"prompt": CONVERSATION[:1], "completion": [calling, RESULT, ANSWER]}
    question = one(row, messages_key="prompt", answer_key="completion")
    assert question.messages == (CONVERSATION[0], calling, RESULT, ANSWER)
    question = one(row | {"completion": [calling]}, messages_key="prompt", answer_key="completion")
    assert (question.messages[-1], question.solution) == (calling, None)


def test_an_answer_may_be_messages_after_a_question():
    question = one({"question": "1+1?", "answer": [WRONG, CONVERSATION[0], ANSWER]})
    asked = {"role": "user", "content": "1+1?"}
    assert question.messages == (asked, WRONG, CONVERSATION[0], ANSWER)
    assert question.solution == ANSWER["content"]


def test_an_answer_of_messages_that_is_none_is_refused():
    row = {"prompt": CONVERSATION, "completion": [CONVERSATION[0]]}
    options = {"messages_key": "prompt", "answer_key": "completion"}
    with pytest.raises(
        InputError, match='row 1, "completion": the last message must be of the ass'
    ):
        one(row, **options)
    with pytest.raises(
        InputError, match='row 1, "completion": the last message must be of the ass'
    ):
        one(row | {"completion": [CONVERSATION[0], WRONG, CONVERSATION[0]]}, **options)
    with pytest.raises(InputError, match=r"is a list, and a text is expected \(data\.messages_key"):
        one(row, question_key="prompt", answer_key="completion")


def test_equal_conversations_are_one_question(caplog):
    rows = [{"m": [*CONVERSATION, ANSWER]}, {"m": CONVERSATION}, {"m": CONVERSATION[2:]}]
    data = Memory(rows=rows, held_out_rows=rows, messages_key="m", answer_key=None)
    assert len(data.train()) == 2
    assert "1 repeated questions skipped" in caplog.text


def called(**arguments):
    return [{"type": "function", "function": {"name": "add", "arguments": arguments}}]


EMPTY = {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "answers",
    [
        [ANSWER | {"reasoning_content": way} for way in ("a", "b", "c")],
        [ANSWER | {"thinking": "a"}, ANSWER | {"reasoning": "a"}, ANSWER],
        [EMPTY | {"tool_calls": called(n=n)} for n in (1, 1.0, True, "1", None)],
        [EMPTY | {"tool_calls": called(**{name: 1})} for name in ("a", "b")],
        [EMPTY | {"tool_calls": called(n=1) * count} for count in (1, 2)],
        [EMPTY | {"tool_calls": called()}, EMPTY],
        [ANSWER | {"name": name} for name in ("Ada", "Bob")],
        [ANSWER, ANSWER | {"weight": 1}],
        [ANSWER | {"content": text} for text in ("4", " 4")],
    ],
    ids=["thoughts", "names", "values", "keys", "counts", "calls", "authors", "weights", "spaces"],
)
def test_rows_whose_answers_differ_anywhere_are_kept(answers, caplog):
    rows = [{"m": [*CONVERSATION, answer]} for answer in (*answers, answers[0])]
    data = Memory(
        rows=rows, held_out_rows=rows, messages_key="m", answer_key=None, several_answers=True
    )
    assert [row.messages[-1] for row in data.train()] == answers
    assert len({row.id for row in data.train()}) == len(answers)
    assert data.train()[0].id == one({"m": CONVERSATION}, messages_key="m", answer_key=None).id
    assert len(data.held_out()) == 1  # an evaluation uses the question once
    assert "1 repeated rows skipped" in caplog.text


@pytest.mark.parametrize(
    "before",
    [
        [CONVERSATION[1] | {"reasoning_content": way} for way in ("a", "b")],
        [CONVERSATION[1] | {"tool_calls": called(n=n)} for n in (1, True, "1")],
        [CONVERSATION[1] | {"name": "Ada"}, CONVERSATION[1]],
    ],
    ids=["thoughts", "calls", "names"],
)
def test_prompts_that_differ_anywhere_are_kept(before):
    rows = [{"m": [CONVERSATION[0], said, CONVERSATION[2]]} for said in (*before, before[0])]
    data = Memory(rows=rows, held_out_rows=rows, messages_key="m", answer_key=None)
    for questions in (data.train(), data.held_out()):
        assert len(questions) == len({row.id for row in questions}) == len(before)


@pytest.mark.parametrize("several", [False, True])
def test_rows_of_one_text_differ_by_what_graders_and_environments_read(several):
    rows = [{"question": "Play.", "answer": "1", "board": {"n": n}} for n in (1, 2, 3, 1)]
    options = {"metadata_keys": ["board"], "several_answers": several}
    data = Memory(rows=rows, held_out_rows=rows, **options)
    assert sorted(row.metadata["board"]["n"] for row in data.train()) == [1, 2, 3]
    assert len({row.id for row in data.train()}) == 3
    assert len(data.held_out()) == (1 if several else 3)
    with pytest.raises(InputError, match=r"holds out every row"):  # never the same text in both
        Memory(rows=rows, **options).train()


def test_pairs_that_differ_in_a_type_are_kept():
    def pair(n, other):
        calls = (EMPTY | {"tool_calls": called(n=value)} for value in (n, other))
        return {"prompt": CONVERSATION[:1]} | {k: [x] for k, x in zip("ab", calls, strict=True)}

    rows = [pair(1, 2), pair(1, True), pair(1, 1.0), pair(1, 2)]
    options = {"chosen_key": "a", "rejected_key": "b", "question_key": "prompt"}
    data = Memory(rows=rows, held_out_rows=rows, several_answers=True, **options)
    assert len({row.id for row in data.train()}) == len(data.train()) == 3
    with pytest.raises(InputError, match=r'"a" and "b" are equal'):
        one(pair(1, 1), **options)


def test_the_ids_of_other_answers_are_those_of_earlier_versions():
    rows = [{"question": "1+1", "answer": answer} for answer in ("2", "#### 2")]
    ids = [row.id for row in Memory(rows=rows, held_out_rows=[], several_answers=True).train()]
    assert ids == ["4a1b21d876ae00c8", "30f8e684f31034ce"]


def test_a_system_prompt_that_no_conversation_takes_is_refused():
    system = {"role": "system", "content": "Add."}
    rows = [{"m": [system, *CONVERSATION]}, {"m": CONVERSATION}]
    options = {"messages_key": "m", "answer_key": None, "system_prompt": "Think."}
    assert len(Memory(rows=rows, held_out_rows=rows, **options).train()) == 2
    with pytest.raises(InputError, match=r"data\.system_prompt has no effect, because every conv"):
        one(rows[0], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_rows": (), "held_out_size": 1}, "held_out_size cannot be .* held_out_rows"),
        ({"messages_key": "m", "question_key": "q"}, "question_key=q has no effect with messages"),
        ({"tools_key": "t"}, "tools_key=t has no effect without messages_key"),
        ({"task": "t", "task_key": "k"}, "task=t has no effect with task_key"),
    ],
    ids=["held_out", "messages", "tools", "task"],
)
def test_options_that_cannot_act_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Memory(rows=[], **options)


def test_the_first_of_each_keeps_the_order():
    rows = [one({"question": text, "answer": "1"}) for text in ("a", "b", "aa", "bb")]
    assert [q.question for q in first_of_each(rows, lambda q: q.question[0])] == ["a", "b"]


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
