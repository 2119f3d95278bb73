"""Tests requests of /v1/messages as conversations, and its objects and events."""

import asyncio
import json

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.anthropic_messages import (
    MessagesError,
    MessagesRequest,
    body,
    events,
    messages_of,
)
from rl4p.engine.serving.body import HttpError, validate
from rl4p.engine.serving.chat import ChatRequest
from rl4p.engine.serving.wishes import Wishes

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CHAT = {
    "id": "chatcmpl-7",
    "model": "m",
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    "choices": [
        {
            "message": {"role": "assistant", "content": "text", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
        }
    ],
}


def test_blocks_are_messages():
    text = {"type": "text", "text": "t"}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "2"}
    (message,) = messages_of({"role": "assistant", "content": [text, use]})
    assert message["content"] == [text]
    assert message["tool_calls"][0]["function"] == CALL["function"]
    tool, user = messages_of({"role": "user", "content": [result, text]})
    assert tool == {"role": "tool", "content": "2", "tool_call_id": "c"}
    assert user == {"role": "user", "content": [text]}
    assert len(messages_of({"role": "user", "content": [result]})) == 1
    assert messages_of({"role": "user", "content": "t"}) == [{"role": "user", "content": "t"}]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice must be auto or none"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice must be auto or none"),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            "parallel_tool_calls must be true",
        ),
        ({"output_format": {"schema": {}}}, "response_format.type must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "Blocks of type image"),
        ({"max_tokens": None}, "max_tokens is missing"),
    ],
)
def test_what_is_not_supported_is_refused(fields, sentence):
    usual = {"max_tokens": 5, "messages": [{"role": "user", "content": "1"}]}
    with pytest.raises(HttpError, match=sentence):
        validate(ChatRequest, validate(MessagesRequest, usual | fields).for_chat())


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"tools": [{"name": "f"}]}])
@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "id": "t"}, "t", {"a": 1}]
)
def test_a_thread_is_refused_by_the_code_that_clients_know(thread, more):
    usual = {"max_tokens": 5, "messages": [{"role": "user", "content": "1"}]} | more
    with pytest.raises(HttpError, match="send the whole conversation") as refused:
        validate(MessagesRequest, usual | {"thread": thread})
    error = refused.value.body()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    assert (error["type"], refused.value.status) == ("invalid_request_error", 400)
    for none in (None, False):
        assert validate(MessagesRequest, usual | {"thread": none}).thread is None


@pytest.mark.parametrize("content", ["{", [{"type": "text", "text": "{"}]])
def test_a_message_of_the_assistant_at_the_end_is_gone_on_with(content):
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": content}]
    fields = {"max_tokens": 5, "messages": messages}
    chat = validate(ChatRequest, validate(MessagesRequest, fields).for_chat())
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    fields["messages"] = messages[:1]
    chat = validate(ChatRequest, validate(MessagesRequest, fields).for_chat())
    assert (chat.continue_final_message, chat.add_generation_prompt) == (False, True)


def test_errors_have_the_form_of_anthropic():
    body = MessagesError("No.", param="thread", details={"a": 1}).body()
    error = {"type": "invalid_request_error", "message": "No.", "param": "thread", "code": None}
    assert body == {"type": "error", "error": error | {"details": {"a": 1}}}


def test_a_stop_sequence_is_named():
    choice = CHAT["choices"][0] | {"finish_reason": "stop", "stop_reason": "END"}
    message = body(CHAT | {"choices": [choice]})
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_the_events_of_a_message_have_all_of_it():
    message = body(CHAT)
    assert (message["stop_reason"], message["id"]) == ("tool_use", "msg_7")

    async def read():
        return [chunk async for chunk in events(message)]

    chunks = [json.loads(chunk.partition(b"data: ")[2]) for chunk in asyncio.run(read())]
    deltas = [chunk["delta"] for chunk in chunks if chunk["type"] == "content_block_delta"]
    assert deltas[0]["text"] == "text"
    assert json.loads(deltas[1]["partial_json"]) == {"a": 1}
    assert chunks[0]["message"]["content"] == []
    assert chunks[-2]["delta"]["stop_reason"] == "tool_use"


ASKED = {"max_tokens": 5, "messages": [{"role": "user", "content": "1"}]}
FIND = {"name": "find", "input_schema": {"type": "object"}}
LATER = {"name": "later", "description": "Later.", "input_schema": {}, "defer_loading": True}
SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "search"}


def tools_of(*tools, wishes=None):
    chat = validate(MessagesRequest, ASKED | {"tools": list(tools)}).for_chat(wishes)
    return [tool["function"]["name"] for tool in chat["tools"]]


def test_a_deferred_tool_is_read_where_a_result_refers_to_it(caplog):
    assert tools_of(FIND, LATER) == ["find"]
    parts = [{"type": "tool_reference", "tool_name": x} for x in ("later", "lost")]
    parts.append({"type": "text", "text": "t"})
    block = {"type": "tool_result", "tool_use_id": "c", "content": parts}
    messages = [{"role": "user", "content": [block]}]
    request = validate(MessagesRequest, ASKED | {"messages": messages, "tools": [FIND, LATER]})
    later, lost, text = request.for_chat()["messages"][0]["content"]
    assert json.loads(later["text"])["description"] == "Later."
    assert (lost["text"], text["text"]) == ('"lost"', "t")
    # A search by Anthropic's server would find it: here it is read from the beginning.
    wishes = Wishes(drops=(), formats="prompt", sampling=Sampling())
    assert tools_of(FIND, LATER, SEARCH, wishes=wishes) == ["find", "later"]


@pytest.mark.parametrize(
    "kind", ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "mcp_toolset"]
)
def test_a_tool_of_the_server_is_left_out_and_named(kind, caplog):
    tool = {"type": kind, "name": "web"}
    with pytest.raises(HttpError, match=f"Tools of type {kind} are not supported"):
        tools_of(tool)
    wishes = Wishes(drops=(), formats="prompt", sampling=Sampling())
    own = {"type": "bash_20250124", "name": "bash"}, {"type": "custom"} | FIND
    assert tools_of(tool, *own, wishes=wishes) == ["bash", "find"]
    assert f'tools.type="{kind}"' in caplog.text
