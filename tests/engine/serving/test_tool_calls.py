import pytest

from rl4p.engine.serving.tool_calls import ToolCall, ToolCallParser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'
ADD = ToolCall("add", '{"a": 1, "b": "é"}')


def read(text, size):
    parser, content, calls = ToolCallParser(), "", []
    for at in range(0, len(text), size):
        more, found = parser.feed(text[at : at + size])
        content, calls = content + more, calls + found
    more, found = parser.flush()
    return content + more, calls + found


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("just text ", "just text ", []),
        (CALL, "", [ADD]),
        (f"I add.\n{CALL}\n{CALL}\n", "I add.", [ADD, ADD]),
        ('<tool_call>{"name": "now"}</tool_call>', "", [ToolCall("now", "{}")]),
        ("a < b <tool_ca", "a < b <tool_ca", []),
        ("<tool_call>no</tool_call>", "<tool_call>no</tool_call>", []),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ("<tool_call>[1]", "<tool_call>[1]", []),
        (CALL.removesuffix("</tool_call>"), "", [ADD]),  # the end token came first
        (f"<tool_call>{{</tool_call>{CALL}", "<tool_call>{</tool_call>", [ADD]),
        ('I add. [TOOL_CALLS]add[ARGS]{"a": 1, "b": "é"}', "I add.", [ADD]),
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": "é"}}]', "", [ADD]),
        (2 * '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "é"}', "", [ADD, ADD]),
        ("[TOOL_CALLS]add[ARGS]{", "[TOOL_CALLS]add[ARGS]{", []),
        ("[TOOL_CAL", "[TOOL_CAL", []),
        (' {"name": "add", "parameters": {"a": 1, "b": "é"}}', "", [ADD]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": "é"}}', "", [ADD]),
        ('{"sum": 3}', '{"sum": 3}', []),
        ("<|py", "<|py", []),
    ],
)
def test_a_text_is_divided_into_content_and_calls(text, content, calls, size):
    assert read(text, size) == (content, calls)


def test_content_is_not_held_back_longer_than_needed():
    parser = ToolCallParser()
    assert parser.feed("a <b> c<tool") == ("a <b> c", [])
    assert parser.feed("s>") == ("<tools>", [])


def test_the_body_of_a_call_has_an_id_of_its_own():
    one, other = ADD.body(), ADD.body()
    assert one["function"] == {"name": "add", "arguments": ADD.arguments}
    assert one["id"] != other["id"]
