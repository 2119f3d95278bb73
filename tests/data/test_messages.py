import json

import pytest

from rl4p.data.fields import MISSING
from rl4p.data.messages import conversation, tools_of, without_tags
from rl4p.errors import InputError

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


def test_parts_of_a_content_are_joined():
    parts = [{"type": "text", "text": "1"}, {"type": "text", "text": "+1?"}]
    assert read([USER | {"content": parts}]) == (USER,)


def test_fields_without_a_value_are_left_out_at_any_depth():
    """Tables have all columns in all rows, and a template would take None for a tool call."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    rows = [
        USER | {"tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add", "tool_calls": None},
    ]
    user, asked, result = read(rows)
    assert user == USER
    assert asked["content"] == ""
    assert asked["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert "tool_calls" not in result


def test_tags_are_removed_from_the_text_of_the_user_alone():
    text = "<think>a</think> <ANSWER>1+1?</answer> <b>"
    assert without_tags(text) == "a 1+1? <b>"
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
        ([ANSWER], "no message has the role user"),
        ([USER, {"role": "system", "content": "x"}], "a system message must be the first"),
        ([USER | {"content": "\ud800"}], "not UTF-8"),
        ([USER | {"time": object()}], "a message is not plain data"),
    ],
    ids=range(17),
)
def test_what_is_no_conversation_is_refused_with_its_place(value, message):
    with pytest.raises(InputError, match=f"f, line 1(, |: ){message}") as error:
        read(value)
    assert len(str(error.value)) < 300


def test_the_tools_of_a_conversation():
    tools = [{"type": "function", "function": {"name": "add", "description": None}}]
    expected = ({"type": "function", "function": {"name": "add"}},)
    assert tools_of(tools, "f") == tools_of(json.dumps(tools), "f") == expected
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
