"""Tests how an action is read from a message."""

import asyncio
from dataclasses import replace

import pytest

from rl4p.base.types import Prompt
from rl4p.data.call_reader import CallReader
from rl4p.data.tool_calls import MalformedCall
from rl4p.rollout.environments.actions import (
    ServerTools,
    TextActions,
    results_of_calls,
    schema_of,
    text_of_result,
)

PROMPT = Prompt(
    id="p", question="q", answer="a", task="t", tokens=(1,), generation_prompt="<think>"
)
PLAIN = replace(PROMPT, generation_prompt=None)
NONE = MalformedCall("No move.")


@pytest.mark.parametrize(
    ("text", "action", "number"),
    [
        ("<a>7</a>", "7", 7),
        ("<a>1</a> no, <a> 7 </a>.", "7", 7),
        ("7", NONE, NONE),
        ("<a>7", NONE, NONE),
        ("<a>x</a>", "x", NONE),
        ("<think><a>1</a></think><a>7</a>", "7", 7),
        ("<think>maybe <a>1</a></think>I pass.", NONE, NONE),
        ("<think>maybe <a>1</a>", NONE, NONE),
        ("maybe <a>1</a></think><a>7</a>", "7", 7),
        ("[THINK]<a>1[/THINK]</a>", NONE, NONE),
    ],
)
def test_the_action_of_a_message(text, action, number):
    enclosed = {"action_begin": "<a>", "action_end": "</a>", "missing_action": "No move."}
    assert TextActions(**enclosed).action(text, PLAIN) == action
    assert TextActions(**enclosed, discrete=True).action(text, PLAIN) == number


def test_the_whole_message_is_the_action():
    assert TextActions().action(" go <a>north</a> ", PLAIN) == "go <a>north</a>"
    assert TextActions(discrete=True).action("<think>7 or 8?</think>\n8", PLAIN) == 8


def test_the_prompt_may_open_the_thoughts():
    assert TextActions().action("north</think>south", PROMPT) == "south"
    assert TextActions(missing_action="No move.").action("north", PROMPT) == NONE


def test_the_answer_without_an_action_keeps_the_state():
    result = TextActions(missing_action="No move.").without_action("at 1,1")
    assert result.messages == [{"role": "user", "content": "No move."}]
    assert (result.state, result.metrics, result.done) == (
        "at 1,1",
        {"missing_actions": 1.0},
        False,
    )


TWO = CallReader(functions={"one": {}, "two": {}})
CALL = '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'


async def answer(call):
    return f"result of {call.name}"


def results(text, most=100):
    return asyncio.run(results_of_calls(text, TWO, answer, most))


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


def test_a_schema_has_the_form_of_chat_templates():
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    schema = schema_of({"name": "add", "description": "Adds.", "input_schema": parameters})
    function = {"name": "add", "description": "Adds.", "parameters": parameters}
    assert schema == {"type": "function", "function": function}
    tools = ServerTools()
    assert tools.reader(PROMPT).functions == {}
    tools.schemas = (schema, schema_of({"name": "end", "description": None}))
    end = {"name": "end", "description": "", "parameters": {}}
    assert tools.reader(PROMPT) == CallReader(
        functions={"add": function, "end": end}, generation_prompt="<think>"
    )


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "image"}, {"type": "text", "text": "a"}]}, "[an image]\na"),
        ({"content": [{"type": "text", "text": "a"}], "is_error": True}, "Error: a"),
        ("a", "a"),
        ({"a": [1]}, '{"a": [1]}'),
    ],
)
def test_the_text_of_a_result(result, text):
    assert text_of_result(result) == text


TEXT = {"type": "text", "text": "One document:"}
READ = {"type": "resource", "resource": {"uri": "a://b", "text": "31 m", "mime_type": "text/plain"}}
BLOB = {"type": "resource", "resource": {"uri": "a://b", "blob": "aGk=", "mimeType": "app/zip"}}
LINK = {"type": "resource_link", "uri": "a://b", "name": "tower", "description": "its height"}
IMAGE = {"type": "image", "data": "aGk=", "mime_type": "image/png"}
SOUND = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
HEIGHT = {"height": 31}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [TEXT]}, "One document:"),
        ({"content": [READ]}, "31 m"),
        ({"content": [TEXT, READ]}, "One document:\n31 m"),
        ({"content": [LINK]}, "tower, its height: a://b"),
        ({"content": [{"type": "resource_link", "uri": "a://b"}]}, "a://b"),
        ({"content": [IMAGE, TEXT, SOUND]}, "[an image]\nOne document:\n[a sound]"),
        ({"content": [BLOB]}, "[data: app/zip a://b]"),
        ({"content": [], "structured_content": HEIGHT}, '{"height": 31}'),
        ({"content": [], "structuredContent": HEIGHT}, '{"height": 31}'),
        ({"content": [], "structured_content": {}}, "{}"),
        ({"content": [IMAGE], "structured_content": HEIGHT}, '[an image]\n{"height": 31}'),
        ({"content": [TEXT], "structured_content": HEIGHT}, "One document:"),
        ({"content": [BLOB], "structured_content": [1]}, "[data: app/zip a://b]\n[1]"),
        ({"content": [TEXT], "is_error": True}, "Error: One document:"),
        ({"content": [READ], "isError": True}, "Error: 31 m"),
        ({"content": [{"type": "video"}]}, "[video without a text]"),
        ({"content": []}, ""),
        ({"other": 1}, '{"other": 1}'),
        ("words", "words"),
        (None, "null"),
    ],
)
def test_whatever_a_tool_returns_reaches_the_policy_as_text(result, text):
    assert text_of_result(result) == text
