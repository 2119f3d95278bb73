"""Tests that arguments written as texts get the types of the schema, and no others."""

import pytest

from rl4p.data.argument_types import typed_arguments

INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (INT, "4", 4),
        (INT, " 4 ", 4),
        (INT, "5.0", 5),
        (INT, "4.5", "4.5"),
        (INT, "four", "four"),
        (INT, "true", "true"),  # int(True) is 1
        ({"type": "number"}, "4", 4),
        ({"type": "number"}, "4.5", 4.5),
        ({"type": "number"}, '"4"', '"4"'),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),  # as the template writes it
        ({"type": "boolean"}, "1", "1"),
        ({"type": "array"}, '["p", 1, null]', ["p", 1, None]),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "object"}, '{"k": {"l": [2]}}', {"k": {"l": [2]}}),
        ({"type": "object"}, "{'k': 2}", "{'k': 2}"),
        (TEXT, "4", "4"),
        (TEXT, "null", "null"),
        (TEXT, '["a"]', '["a"]'),
        (TEXT | {"nullable": True}, "null", "null"),
        (INT | {"nullable": True}, "null", None),
        (INT | {"nullable": True}, "None", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"anyOf": [INT, NULL]}, "null", None),
        ({"anyOf": [INT, NULL]}, "7", 7),
        ({"anyOf": [TEXT, NULL]}, "null", "null"),
        ({"oneOf": [INT, {"type": "array"}]}, "[7]", [7]),
        ({"anyOf": [INT, {}]}, "7", "7"),  # anything
        ({"$ref": "#/$defs/Size"}, '{"w": 1}', {"w": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Size"}, NULL]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Size"}]}, '{"w": 1}', {"w": 1}),
        ({"$ref": "#/$defs/Round"}, "1", "1"),
        ({"$ref": "#/$defs/Missing"}, "1", "1"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": 1}, "1", 1),
        ({}, "7", "7"),
        (True, "7", "7"),
        (INT, "[" * 100_000, "[" * 100_000),
    ],
)
def test_a_text_has_the_type_of_the_schema(schema, text, value):
    definitions = {"Size": {"type": "object"}, "Round": {"$ref": "#/$defs/Round"}}
    whole = {"properties": {"a": schema}, "$defs": definitions}
    found = typed_arguments({"a": text}, whole)["a"]
    assert found == value
    assert type(found) is type(value)


def test_what_the_schema_lacks_stays_a_text():
    assert typed_arguments({"b": "1"}, {"properties": {"a": INT}}) == {"b": "1"}
    assert typed_arguments({"b": "1"}, {}) == {"b": "1"}
    assert typed_arguments({"b": "1"}, {"additionalProperties": True}) == {"b": "1"}
    assert typed_arguments({"b": "1"}, {"additionalProperties": INT}) == {"b": 1}
