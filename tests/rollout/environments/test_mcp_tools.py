"""Tests the schemas and the results of MCP's tools."""

import pytest

from rl4p.rollout.environments.mcp_tools import ServerTools, schema_of, text_of_result


def test_a_schema_has_the_form_of_chat_templates():
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = schema_of({"name": "add", "description": "Adds.", "input_schema": parameters})
    function = {"name": "add", "description": "Adds.", "parameters": parameters}
    assert schema == {"type": "function", "function": function}
    tools = ServerTools()
    assert tools.functions() == {}
    tools.schemas = (schema, schema_of({"name": "end", "description": None}))
    assert tools.functions() == {
        "add": function,
        "end": {"name": "end", "description": "", "parameters": {}},
    }


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "image"}, {"type": "text", "text": "a"}]}, "a"),
        ({"content": [{"type": "text", "text": "a"}], "is_error": True}, "Error: a"),
        ("a", "a"),
        ({"a": [1]}, '{"a": [1]}'),
    ],
)
def test_the_text_of_a_result(result, text):
    assert text_of_result(result) == text
