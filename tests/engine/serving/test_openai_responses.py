"""Tests requests of /v1/responses as conversations, and its objects and events."""

import asyncio
import json
from typing import get_args

import pytest
from openai.types.responses import ResponseStreamEvent

from rl4p.base.types import Sampling
from rl4p.engine.serving.body import HttpError, validate
from rl4p.engine.serving.openai_responses import (
    ResponsesRequest,
    as_function,
    body,
    callable_tools,
    events,
)
from rl4p.engine.serving.wishes import Wishes

CHAT = {
    "id": "chatcmpl-7",
    "created": 1,
    "model": "m",
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def conversation(fields):
    request = validate(ResponsesRequest, fields)
    return request.messages(request.items({}))


def test_items_are_messages():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "2"},
    ]
    fields = {"input": items, "instructions": "Be short."}
    system, user, assistant, tool = conversation(fields)
    assert (system["content"], user["content"]) == ("Be short.", "one")
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == ["f", "g"]
    assert tool == {"role": "tool", "content": "2", "tool_call_id": "a"}
    assert conversation({"input": "hello"}) == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"input": [{"type": "image"}]}, "Items of type image are not supported"),
        ({"input": "a", "previous_response_id": "r"}, "Previous response with id 'r' not found"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "Item with id 'm' not found"),
        ({"input": [{"id": "m"}]}, "Item with id 'm' not found"),
        ({"input": [{"type": "item_reference"}]}, "Item with id 'None' not found"),
        ({"input": "a", "conversation": "c"}, "conversation is not supported"),
        ({}, "input is missing"),
    ],
)
def test_what_is_not_supported_is_refused(fields, sentence):
    with pytest.raises(HttpError, match=sentence):
        conversation(fields)


SAID = {"type": "message", "id": "msg_1", "role": "assistant", "content": "text"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "2"}
ASKED = {"role": "user", "content": "one"}
KNOWN = {"msg_1": [SAID], "fc_1": [CALL], "resp_1": [ASKED, SAID, CALL]}


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [ASKED, SAID, CALL, RESULT]},
        {"input": [ASKED, {"type": "item_reference", "id": "msg_1"}, CALL, RESULT]},
        {"input": [ASKED, SAID, {"type": "item_reference", "id": "fc_1"}, RESULT]},
        {"input": [ASKED, {"id": "msg_1"}, {"id": "fc_1"}, RESULT]},
        {"input": [RESULT], "previous_response_id": "resp_1"},
        {"input": [{"id": "resp_1"}, RESULT]},
        {"input": [{"type": "item_reference", "id": "resp_1"}, RESULT], "store": True},
        {"input": [ASKED, {"id": "msg_1"}, CALL | {"status": "completed"}, RESULT | {"id": "o"}]},
        {"input": [ASKED, {"type": "reasoning", "id": "r", "summary": []}, SAID, CALL, RESULT]},
    ],
)
def test_references_stand_for_the_items_of_earlier_responses(fields):
    request = validate(ResponsesRequest, fields)
    assert len(request.items(KNOWN)) == 4 + ("reasoning" in str(fields))
    user, assistant, tool = request.messages(request.items(KNOWN))
    assert (user["content"], assistant["content"], tool["content"]) == ("one", "text", "2")
    assert [call["id"] for call in assistant["tool_calls"]] == ["c"]


def test_a_text_follows_the_response_before():
    request = validate(ResponsesRequest, {"input": "two", "previous_response_id": "resp_1"})
    assert request.items(KNOWN)[-2:] == [CALL, {"role": "user", "content": "two"}]


@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_a_message_and_its_calls_are_items(reason, status):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "text", "tool_calls": [call]}
    response = body(CHAT | {"choices": [{"message": message, "finish_reason": reason}]})
    said, called = response["output"]
    assert said["content"][0]["text"] == "text"
    assert (called["type"], called["call_id"], called["name"]) == ("function_call", "c", "f")
    assert (response["status"], response["id"]) == (status, "resp_7")
    assert (response["incomplete_details"] is None) == (status == "completed")
    assert response["usage"]["input_tokens"] == 3


@pytest.mark.parametrize(("reason", "last"), [("stop", "completed"), ("length", "incomplete")])
def test_events_are_those_of_openai(reason, last):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "text", "tool_calls": [call]}
    response = body(CHAT | {"choices": [{"message": message, "finish_reason": reason}]})

    async def lines():
        return [text async for text in events(response)]

    seen = [text.decode().splitlines() for text in asyncio.run(lines())]
    values = [json.loads(data.removeprefix("data: ")) for _, data, _ in seen]
    assert [name for name, _, _ in seen] == [f"event: {value['type']}" for value in values]
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    kinds = [value["type"].removeprefix("response.") for value in values]
    text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    items = [["output_item.added", *each, "output_item.done"] for each in (text, arguments)]
    assert kinds == ["created", "in_progress", *items[0], *items[1], last]
    assert values[0]["response"]["output"] == []
    assert values[-1]["response"] == response
    union, _ = get_args(ResponseStreamEvent)  # OpenAI's own types
    types = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}
    for value in values:
        types[value["type"]].model_validate(value)


RUN = {"type": "custom", "name": "run", "description": "Runs.", "format": {"type": "text"}}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
TOOLS = [ADD, {"type": "namespace", "name": "n", "description": "N.", "tools": [ADD, RUN]}]


def test_tools_of_namespaces_and_of_texts_are_functions():
    functions = [as_function(*tool)["function"] for tool in callable_tools(TOOLS, None).items()]
    assert [function["name"] for function in functions] == ["add", "n__add", "n__run"]
    assert functions[1]["parameters"] == {"type": "object"}
    assert functions[2].keys() == {"name", "description", "parameters"}
    assert functions[2]["parameters"]["required"] == ["input"]


@pytest.mark.parametrize("arguments", ['{"input": "a\\n"}', '{"code": "a"}', "{}"])
def test_a_call_is_an_item_of_the_kind_of_its_tool(arguments):
    names = ("add", "n__add", "n__run")
    calls = [{"id": x, "function": {"name": x, "arguments": arguments}} for x in names]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    chat = CHAT | {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    response = body(chat, callable_tools(TOOLS, None))
    alone, named, text = response["output"]
    assert alone.keys() == {"type", "id", "status", "call_id", "name", "arguments"}
    assert (named["namespace"], named["name"], named["arguments"]) == ("n", "add", arguments)
    assert (text["type"], text["namespace"], text["name"]) == ("custom_tool_call", "n", "run")
    assert text["input"] == json.loads(arguments).get("input", arguments)
    (assistant,) = conversation({"input": response["output"]})
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == list(names)

    async def lines():
        return [text async for text in events(response)]

    union, _ = get_args(ResponseStreamEvent)
    types = {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}
    values = [json.loads(line.partition(b"data: ")[2]) for line in asyncio.run(lines())]
    for value in values:
        types[value["type"]].model_validate(value)
    kinds = [value["type"].removeprefix("response.") for value in values]
    assert kinds[-4:-1] == [
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]


@pytest.mark.parametrize("kind", ["web_search", "mcp", "local_shell", "file_search"])
def test_a_tool_that_no_program_runs_is_left_out_and_named(kind, caplog):
    with pytest.raises(HttpError, match=f"Tools of type {kind} are not supported"):
        callable_tools([{"type": kind}], None)
    wishes = Wishes(drops=(), formats="prompt", sampling=Sampling())
    assert callable_tools([{"type": kind}, ADD], wishes).keys() == {"add"}
    assert f'tools.type="{kind}"' in caplog.text
