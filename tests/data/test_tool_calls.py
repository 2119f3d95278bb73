"""Tests that each form of calls is read as it was written, or is malformed."""

import pytest

from rl4p.data.call_reader import CallReader
from rl4p.data.tool_calls import MalformedCall, ParsedCall

TYPES = {"a": {"type": "integer"}, "b": {"type": "integer"}}
FUNCTIONS = {
    "add": {"parameters": {"properties": TYPES}},
    "write": {"parameters": {"properties": {"path": {}, "text": {"type": "string"}}}},
}
ADD = ParsedCall("add", {"a": 1, "b": 2})


def tool_calls(text):
    return CallReader(functions=FUNCTIONS).calls(text)


def coder(*lines, name="write"):
    return "\n".join(("<tool_call>", f"<function={name}>", *lines, "</function>", "</tool_call>"))


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        'I.<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call><|end|>',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}<|im_end|>',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}\nNow I wait.',
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '{"type": "function", "name": "add", "parameters": {"a": 1, "b": 2}}<|eot_id|>',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]',
        '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}',
        '[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"a": 1, "b": 2}</s>',
        coder("<parameter=a>", "1", "</parameter>", "<parameter=b>2</parameter>", name="add"),
    ],
)
def test_each_family_calls_the_same_tool(text):
    assert tool_calls(text) == [ADD]


ONE = '<tool_call>{"name": "f", "arguments": {"n": %d}}</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        ONE % 1 + " and " + ONE % 2,
        (ONE % 1).removesuffix("</tool_call>") + "\n" + ONE % 2,
        (ONE % 1).removesuffix("</tool_call>") + " and " + ONE % 2,
        '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]f[ARGS]{"n": 2}',
        '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}, {"name": "f", "arguments": {"n": 2}}]',
        '<|python_tag|>{"name": "f", "parameters": {"n": 1}}; {"name": "f", "arguments": {"n":2}}',
    ],
)
def test_several_calls_in_order(text):
    assert tool_calls(text) == [ParsedCall("f", {"n": 1}), ParsedCall("f", {"n": 2})]


@pytest.mark.parametrize("text", ["", "17", "The answer is {17}.", "{17}", "use add(1, 2)"])
def test_a_message_without_a_call(text):
    assert tool_calls(text) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 5}',
        '{"people": [{"name": "Bob"}]}',
        '{"name": "Bob", "parameters": {"age": 5}}',
        '{"name": "add", "age": 5}',
        '{"name": "add"}',
        '{"name": ["add"], "arguments": {}}',
        '{"name": "Bob", "note": "<tool_call> begins a call"}',
        '{"name": "Bob", "age": ',
        ' {"first_name": "add", "arguments": 3}\n',
        '{"name": "add", "arguments": {}} {"name": "Bob", "arguments": {}}',
    ],
)
def test_an_answer_in_json_is_no_call(text):
    assert tool_calls(text) == []


@pytest.mark.parametrize(
    "value", ["a </tool_call> b", "<tool_call>", "<function=f>", "[TOOL_CALLS]", "</think>", "`"]
)
@pytest.mark.parametrize(
    "form",
    [
        '<tool_call>{"name": "write", "arguments": {"text": "%s"}}</tool_call>',
        '[TOOL_CALLS]write[ARGS]{"text": "%s"}',
        '{"name": "write", "parameters": {"text": "%s"}}',
    ],
)
def test_a_mark_in_a_string_is_a_part_of_it(form, value):
    assert tool_calls(form % value) == [ParsedCall("write", {"text": value})]


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        (("<parameter=text>", "  two", "lines", "</parameter>"), {"text": "  two\nlines"}),
        (("<parameter=text>", "", "</parameter>"), {"text": ""}),
        ((), {}),
        (("<parameter=text>", "hello"), {"text": "hello"}),
        (
            ("<parameter=path>", "a.txt", "<parameter=text>", "hello", "</parameter>"),
            {"path": "a.txt", "text": "hello"},
        ),
        (("<parameter=text>", "x </parameter> y", "</parameter>"), {"text": "x </parameter> y"}),
        (("<parameter=text>", "<parameter=x> so", "</parameter>"), {"text": "<parameter=x> so"}),
        (("<parameter=text>", "a <parameter=x> b", "</parameter>"), {"text": "a <parameter=x> b"}),
        (("<parameter=text>", "a", "</function>", "</parameter>"), {"text": "a\n</function>"}),
        (
            ("<parameter=text>", "a", "</function>", "</tool_call>", "b", "</parameter>"),
            {"text": "a\n</function>\n</tool_call>\nb"},
        ),
        (("<parameter=text>", "use <tool_call>", "</parameter>"), {"text": "use <tool_call>"}),
        (("<parameter=text>", "a", "</parameter>", "<parameter=x>", "b", "</parameter>"),
         {"text": "a", "x": "b"}),
        # What may have been meant otherwise.
        (("<parameter=path>", "a <parameter=text>", "b", "</parameter>"), None),
        (("<parameter=path>", "a", "<parameter=other>", "b", "</parameter>"), None),
        (("<parameter=text>", "a", "</parameter>", "<parameter=text>", "b", "</parameter>"), None),
        (("<parameter=path>a</parameter>", "b", "<parameter=text>", "c", "</parameter>"), None),
        (("text", "<parameter=path>", "a", "</parameter>"), None),
        (('{"path": "a"}',), None),
    ],
)  # fmt: skip
def test_parameters_are_those_that_were_written(lines, arguments):
    (call, after) = tool_calls(coder(*lines) + ONE % 1)
    assert after == ParsedCall("f", {"n": 1})
    if arguments is None:
        assert isinstance(call, MalformedCall)
    else:
        assert call == ParsedCall("write", arguments)


def test_a_call_that_is_not_closed_does_not_take_the_next_one():
    open_call = "<tool_call>\n<function=write>\n<parameter=text>\na\n"
    call, after = tool_calls(open_call + coder("<parameter=text>", "b", "</parameter>"))
    assert call == MalformedCall("<function=NAME> is not closed")
    assert after == ParsedCall("write", {"text": "b"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>add(1, 2)</tool_call>", "the call is no JSON"),
        ("<tool_call>[1]</tool_call>", 'a call is an object with "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'a call is an object with "name"'),
        ('<tool_call>{"name": "f"} {}</tool_call>', "the call is no JSON (Extra data"),
        (
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            "the arguments are wrong (an object",
        ),
        (
            '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
            "the arguments are wrong (Expecting",
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}', "the arguments are wrong (Out of"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}', "the arguments are wrong (Out"),
        ("<tool_call><function=f></tool_call>", "<function=NAME> is not closed"),
        ('{"name": "add", "parameters": {', "the call is no JSON"),
        ('<|python_tag|>{"name": "f", ', "the call is no JSON"),
        ('<|python_tag|>{"name": 3}', 'a call is an object with "name"'),
        ("[TOOL_CALLS] f(1)", "the call is no JSON"),
        ("[TOOL_CALLS]f[ARGS]{} and more", "the call is no JSON (there is text behind it"),
        ("<tool_call>" + "[" * 100_000, "the call is no JSON"),
        ('<tool_call>{"name": "f", "arguments": ' + "[" * 100_000, "the call is no JSON"),
    ],
)  # fmt: skip
def test_what_is_no_call_has_a_reason(text, reason):
    (call,) = tool_calls(text)
    assert isinstance(call, MalformedCall)
    assert call.reason.startswith(reason)
