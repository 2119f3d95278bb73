"""Tests the results of calls of tools in a message."""

import asyncio

import pytest

from rl4p.data.messages import ParsedCall
from rl4p.rollout.environments.tool_results import results_of_calls, typed_arguments

CALL = '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'


async def answer(call):
    return f"result of {call.name}"


def results(text, most=100):
    return asyncio.run(results_of_calls(text, {"one": None, "two": None}, answer, most))


def test_each_call_has_a_message_in_order():
    result = results("".join(CALL.replace("NAME", name) for name in ("two", "one", "three")))
    assert [(each["name"], each["content"]) for each in result.messages] == [
        ("two", "result of two"),
        ("one", "result of one"),
        ("three", "Error: there is no tool 'three', only one, two."),
    ]
    assert {each["role"] for each in result.messages} == {"tool"}
    assert result.metrics == {"tool_calls": 3, "malformed_calls": 0}


def test_malformed_calls_are_answered_and_counted():
    result = results("<tool_call>{</tool_call>")
    assert result.messages[0]["content"].startswith("Error: ")
    assert result.metrics == {"tool_calls": 1, "malformed_calls": 1}
    assert results("no call") is None


def test_a_long_result_is_cut():
    (message,) = results(CALL.replace("NAME", "one"), most=6).messages
    assert message["content"] == "result [cut after 6 of 13 characters]"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "4", 4),
        ("array", "[1, 2]", [1, 2]),
        ("string", "4", "4"),
        ("integer", "four", "four"),
    ],
)
def test_texts_become_values_of_the_types_of_the_schema(kind, text, value):
    schema = {"properties": {"a": {"type": kind}}}
    assert typed_arguments(ParsedCall("one", {"a": text}, texts=True), schema) == {"a": value}
    assert typed_arguments(ParsedCall("one", {"a": text}), schema) == {"a": text}
    assert typed_arguments(ParsedCall("one", {"b": text}, texts=True), schema) == {"b": text}
