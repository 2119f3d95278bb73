"""Tests requests of /v1/responses as conversations, and its objects."""

import pytest

from rl4p.serving.body import validate
from rl4p.serving.http_errors import HttpError
from rl4p.serving.openai_responses import ResponsesRequest, body

CHAT = {
    "id": "chatcmpl-7",
    "created": 1,
    "model": "m",
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}


def test_items_are_messages():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "2"},
    ]
    request = validate(ResponsesRequest, {"input": items, "instructions": "Be short."})
    system, user, assistant, tool = request.messages()
    assert (system["content"], user["content"]) == ("Be short.", "one")
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == ["f", "g"]
    assert tool == {"role": "tool", "content": "2", "tool_call_id": "a"}
    assert validate(ResponsesRequest, {"input": "hello"}).messages() == [
        {"role": "user", "content": "hello"}
    ]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"input": [{"type": "image"}]}, "Items of type image are not supported"),
        ({"input": "a", "stream": True}, "stream must be false: the response is sent as a whole"),
        ({"input": "a", "previous_response_id": "r"}, "previous_response_id is not supported"),
        ({}, "input is missing"),
    ],
)
def test_what_is_not_supported_is_refused(fields, sentence):
    with pytest.raises(HttpError, match=sentence):
        validate(ResponsesRequest, fields).messages()


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
