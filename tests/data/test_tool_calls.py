"""Tests the forms in which families write calls of tools."""

import pytest

from rl4p.data.tool_calls import MalformedCall, ParsedCall, tool_calls

ADD = ParsedCall("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        'I.<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call><|end|>',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}',
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]',
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}',
    ],
)
def test_each_family_calls_the_same_tool(text):
    assert tool_calls(text) == [ADD]


def test_values_of_qwen3_coder_are_texts():
    text = (
        "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n"
        "<parameter=text>\nline 1\nline 2\n</parameter>\n</function>\n</tool_call>"
    )
    expected = ParsedCall("write", {"path": "a.txt", "text": "line 1\nline 2"}, texts=True)
    assert tool_calls(text) == [expected]


def test_several_calls_in_order():
    one = '<tool_call>{"name": "f", "arguments": {"n": %d}}</tool_call>'
    assert tool_calls(one % 1 + " and " + one % 2) == [
        ParsedCall("f", {"n": 1}),
        ParsedCall("f", {"n": 2}),
    ]
    assert tool_calls("[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}") == [
        ParsedCall("f", {}),
        ParsedCall("g", {}),
    ]


@pytest.mark.parametrize("text", ["", "17", "The answer is {17}.", "{17}", "use add(1, 2)"])
def test_a_message_without_a_call(text):
    assert tool_calls(text) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>add(1, 2)</tool_call>", "the call is no JSON"),
        ("<tool_call>[1]</tool_call>", 'a call is an object with "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'a call is an object with "name"'),
        (
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            "the arguments are wrong (an object",
        ),
        (
            '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
            "the arguments are wrong (Expecting",
        ),
        ("<tool_call><function=f></tool_call>", "<function=NAME> is not closed"),
        ('{"name": "f", ', "the call is no JSON"),
        ("[TOOL_CALLS] f(1)", "the call is no JSON"),
        ("<tool_call>" + "[" * 100_000, "the call is no JSON"),
    ],
)
def test_what_is_no_call_has_a_reason(text, reason):
    (call,) = tool_calls(text)
    assert isinstance(call, MalformedCall)
    assert call.reason.startswith(reason)
