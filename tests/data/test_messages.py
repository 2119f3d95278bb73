"""Tests conversations and tools of rows, and the forms in which families write calls of tools."""

import json

import pytest

from rl4p.base.errors import InputError
from rl4p.data.fields import MISSING
from rl4p.data.messages import (
    conversation,
    for_request,
    tools_of,
)

USER = {"role": "user", "content": "1+1?"}
ANSWER = {"role": "assistant", "content": "2"}


def read(value, strip_tags=False):
    return conversation(value, "f, line 1", strip_tags=strip_tags)


def test_a_list_of_messages_and_the_same_as_json_text():
    messages = [{"role": "system", "content": "Add."}, USER, ANSWER]
    assert read(messages) == read(json.dumps(messages)) == tuple(messages)


def test_the_names_of_sharegpt():
    rows = [{"from": name, "value": "x"} for name in ("system", "human", "gpt", "tool")]
    assert [m["role"] for m in read(rows)] == ["system", "user", "assistant", "tool"]
    assert read(rows)[1] == {"role": "user", "content": "x"}


CALL = {"name": "add", "arguments": {"a": 1}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"from": "observation", "value": "2"}, {"role": "tool", "content": "2"}),
        ({"role": "observation", "content": "2"}, {"role": "tool", "content": "2"}),
        ({"role": "function", "name": "add", "content": "2"}, {"role": "tool", "content": "2"}),
        ({"from": "ipython", "value": "2"}, {"role": "tool", "content": "2"}),
        ({"from": "model", "value": "2"}, {"role": "assistant", "content": "2"}),
        ({"from": "function_call", "value": json.dumps(CALL)}, {"tool_calls": [CALL]}),
        ({"from": "function_call", "value": json.dumps([CALL, CALL])}, {"tool_calls": [CALL] * 2}),
        ({"role": "function_call", "content": [CALL]}, {"content": "", "tool_calls": [CALL]}),
    ],
)
def test_the_roles_of_calls_and_results(message, expected):
    last = read([USER, message])[1]
    assert last.items() >= expected.items()
    assert last["role"] == expected.get("role", "assistant")


@pytest.mark.parametrize("text", ["add(1)", "", "[]", "3", None])
def test_a_function_call_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="message 2: the text of function_call must be a call"):
        read([USER, {"from": "function_call", "value": text}])


def test_a_message_with_pictures_is_refused():
    assert read([USER | {"images": []}])[0]["content"] == "1+1?"
    with pytest.raises(InputError, match='message 1: "images" is not empty, but only texts'):
        read([USER | {"images": ["x.png"]}])


def test_parts_of_a_content_are_joined():
    parts = [{"type": "text", "text": "1"}, {"type": "text", "text": "+1?"}]
    assert read([USER | {"content": parts}]) == (USER,)


def called(arguments, **call):
    """Returns the arguments of a call in a conversation, after it was read."""
    function = {"name": "add", "arguments": arguments}
    asked = {"role": "assistant", "content": None, "tool_calls": [{"function": function} | call]}
    (call,) = read([USER, asked])[1]["tool_calls"]
    assert call["function"]["name"] == "add"
    return call["function"]["arguments"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        (' {"a": {"b": [1, null]}} ', {"a": {"b": [1, None]}}),
        ({"a": None}, {"a": None}),
        ('{"a": null}', {"a": None}),
        ({"a": {"b": None}, "c": [{"d": None}]}, {"a": {"b": None}, "c": [{"d": None}]}),
        ('{"a": "{\\"b\\": 1}"}', {"a": '{"b": 1}'}),
        ({"a": '{"b": 1}'}, {"a": '{"b": 1}'}),
        ('{"a": "\\u00e9", "n": 123456789012345678901}', {"a": "é", "n": 123456789012345678901}),
        *[("", {}), ("  ", {}), ("{}", {}), ({}, {}), (None, {})],
    ],
    ids=range(14),
)
def test_arguments_become_an_object_in_which_nulls_stay(given, expected):
    assert called(given) == expected


@pytest.mark.parametrize(
    "given",
    ["{", "[1]", "3", "null1", '"a"', "a=1", "{" * 10_000, [1], 3, True],
    ids=range(10),
)
def test_arguments_that_are_no_object_are_refused(given):
    with pytest.raises(InputError, match="message 2: the arguments of the call of add must be a J"):
        called(given)


def test_a_call_has_the_form_that_templates_read():
    function = {"name": "add", "arguments": '{"a": 1}'}
    calls = [{"function": function, "index": 0, "id": None}, {"id": "c", "function": function}]
    rows = [USER, {"role": "assistant", "tool_calls": [*calls, function]}]
    plain = {"name": "add", "arguments": {"a": 1}}
    assert read(rows)[1]["tool_calls"] == [
        {"type": "function", "function": plain},
        {"id": "c", "type": "function", "function": plain},
        plain,
    ]


def test_a_request_of_openai_has_arguments_as_text_and_is_read_back():
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"é": None}}}
    messages = read([USER, {"role": "assistant", "content": "", "tool_calls": [call]}])
    sent = for_request(messages)
    assert sent[0] == USER
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"é": null}'
    assert read(sent) == messages


@pytest.mark.parametrize(
    ("table", "arguments"),
    [(False, {"a": 1, "b": None, "c": [{"d": None}]}), (True, {"a": 1, "c": [{}]})],
)
def test_fields_of_a_message_without_a_value_are_left_out_and_in_tables_all(table, arguments):
    """Tables have all columns in all rows, and a template would take None for a tool call."""
    function = {"name": "add", "arguments": {"a": 1, "b": None, "c": [{"d": None}]}}
    rows = [
        USER | {"tool_calls": None, "name": None},
        {"role": "assistant", "content": None, "tool_calls": [{"id": None, "function": function}]},
        {"role": "tool", "content": "2", "name": "add", "tool_calls": None},
    ]
    user, asked, result = conversation(rows, "f", strip_tags=False, table=table)
    assert user == USER
    assert asked["content"] == ""
    assert asked["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": arguments}}
    ]
    assert "tool_calls" not in result
    text = json.dumps(rows)  # a text in a table is the author's
    assert conversation(text, "f", strip_tags=False, table=True)[1] == read(rows)[1]


def test_a_developer_is_the_system():
    assert read([{"role": "developer", "content": "x"}, USER])[0]["role"] == "system"


def test_tags_are_removed_from_the_text_of_the_user_alone():
    text = "<think>a</think> <ANSWER>1+1?</answer> <b>"
    messages = [{"role": name, "content": text} for name in ("system", "user", "assistant")]
    assert [m["content"] for m in read(messages, strip_tags=True)] == [text, "a 1+1? <b>", text]
    assert [m["content"] for m in read(messages)] == [text] * 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1+1?", "the text is not a list of messages in JSON"),
        ("[" * 100_000, "the text is not a list of messages in JSON"),
        ([], "a list of messages is expected, not an empty one"),
        (None, "a list of messages is expected, not nothing"),
        (USER, "a list of messages is expected, not dict"),
        ('"1+1?"', "a list of messages is expected, not an empty|a list of messages is exp"),
        (["1+1?"], "message 1: a mapping is expected, not str"),
        ([USER, {"role": "judge", "content": "x"}], "message 2: the role must be one of .*'judge'"),
        ([USER, {"content": "x"}], "message 2: the role must be one of .*None"),
        ([{"role": "user"}], "message 1: the content must be a text, not nothing"),
        ([USER | {"content": 3}], "message 1: the content must be a text, not int"),
        ([USER | {"content": " "}], "message 1: the user's message has no text"),
        ([USER | {"content": [{"type": "image"}]}], "message 1: only texts are supported"),
        ([USER | {"content": [{"type": "refusal", "text": "x"}]}], "message 1: only texts are"),
        ([USER | {"function_call": {"name": "a"}}], "message 1: function_call is not read"),
        ([USER | {"tool_calls": "add"}], "message 1: tool_calls must be a list of mappings"),
        ([USER | {"tool_calls": ["add"]}], "message 1: tool_calls must be a list of mappings"),
        ([USER | {"tool_calls": [{}]}], "message 1: a tool call must name its function"),
        ([USER | {"tool_calls": [{"function": "a"}]}], "message 1: a tool call must name its fu"),
        ([ANSWER], "no message has the role user"),
        ([USER, {"role": "system", "content": "x"}], "a system message must be the first"),
        ([USER | {"content": "\ud800"}], "not UTF-8"),
        ([USER | {"time": object()}], "a message is not plain data"),
    ],
    ids=range(23),
)
def test_what_is_no_conversation_is_refused_with_its_place(value, message):
    with pytest.raises(InputError, match=f"f, line 1(, |: ){message}") as error:
        read(value)
    assert len(str(error.value)) < 300


def test_the_tools_of_a_conversation():
    tools = [{"type": "function", "function": {"name": "add", "default": None}}]
    assert tools_of(tools, "f") == tools_of(json.dumps(tools), "f", table=True) == tuple(tools)
    without = ({"type": "function", "function": {"name": "add"}},)
    assert tools_of(tools, "f", table=True) == without
    for none in (None, MISSING, [], "[]", "null"):
        assert tools_of(none, "f") is None
    for bad in ("add", ["add"], {"name": "add"}, 3):
        with pytest.raises(InputError, match=r"f: (the text is not a list of tools|a list of map)"):
            tools_of(bad, "f")


def test_a_message_of_tags_alone_is_refused():
    tags = [USER | {"content": "<think></think>"}]
    assert read(tags) == tuple(tags)
    with pytest.raises(InputError, match="message 1: the user's message has no text"):
        read(tags, strip_tags=True)
