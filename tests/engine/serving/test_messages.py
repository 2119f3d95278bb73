import asyncio
from dataclasses import replace

import pytest

from rl4p.data.messages import message_of
from rl4p.engine.serving.body import validate
from rl4p.engine.serving.http_errors import HttpError
from rl4p.engine.serving.messages import Conversation
from rl4p.engine.serving.server_state import ServerState

CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

NULL = {"b": None, "c": [{"d": None}]}


def prompt(make_server, body, **changes):
    async def main():
        server = make_server()
        server.policy = replace(server.policy, **changes)
        conversation = validate(Conversation, body)
        tokens = await conversation.encode(server)
        return server.policy.tokenizer.decode(tokens), conversation.has_tools

    return asyncio.run(main())


def test_contents_of_parts_are_joined_and_developers_are_the_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "developer", "content": parts}]}
    (message,) = validate(Conversation, body).messages
    assert message.for_template() == {"role": "system", "content": "ab"}


def test_what_stands_around_the_messages_is_in_the_prompt(make_server):
    async def main():
        server = make_server()
        server.around = lambda messages: [{"role": "system", "content": "s"}, *messages]
        conversation = validate(Conversation, {"messages": [{"role": "user", "content": "x"}]})
        return server.policy.tokenizer.decode(await conversation.encode(server))

    assert asyncio.run(main()) == "s:s|u:x|a:"


def test_the_arguments_of_former_calls_become_objects(make_server):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    text, tools = prompt(make_server, {"messages": messages})
    assert text == 'u:x|a:({"a": 1})|t:2|a:'
    assert not tools


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "a"}}]},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "a", "arguments": {"b": None}}}],
        },
        {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": ""}}]},
        {"role": "assistant", "content": "x", "reasoning_content": "y", "tool_calls": None},
        {"role": "tool", "content": "2", "tool_call_id": "c", "name": "add"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "developer", "content": "x"},
    ],
)
def test_a_request_is_read_as_a_data_set_is(message):
    (ours,) = validate(Conversation, {"messages": [message]}).messages
    assert ours.for_template() == message_of(message, "row 1")


def test_the_policy_has_arguments_of_its_template(make_server):
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert prompt(make_server, body, template={"mark": "?"})[0] == "u:x|a:?"
    body["chat_template_kwargs"] = {"mark": "!"}
    assert prompt(make_server, body, template={"mark": "?"})[0] == "u:x|a:!"


def test_a_long_conversation_is_encoded_too(make_server, monkeypatch):
    monkeypatch.setattr(ServerState, "positions", 1000)  # times the longest token
    body = {"messages": [{"role": "user", "content": "x" * 5000}]}
    assert prompt(make_server, body)[0] == "u:" + "x" * 5000 + "|a:"
    with pytest.raises(HttpError, match="longer than the 1000 positions"):
        prompt(make_server, {"messages": [{"role": "user", "content": "x" * 50_000}]})


def test_the_last_message_can_be_continued(make_server):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert prompt(make_server, body)[0] == "u:x|a:The"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("a", "must be a JSON object"),
        ({"role": "user", "content": 3}, "content must be a string or a list of parts"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"content\[0\].type must be text"),
        ({"role": "user", "content": "a", "contnt": "b"}, "contnt is not a field"),
        ({"role": "assistant", "tool_calls": [{}]}, r"tool_calls\[0\].function is missing"),
        ({"role": "assistant", "tool_calls": "a"}, "tool_calls must be a list"),
        ({"role": "assistant", "function_call": {"name": "a"}}, "function_call is not supported"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]},
            "arguments must be a JSON object",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            r"function\.name must be a string that is not empty",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(message, words):
    with pytest.raises(HttpError, match=rf"^messages\[1\].*{words}"):
        validate(Conversation, {"messages": [{"role": "user", "content": "a"}, message]})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tools": [{"type": "web"}]}, r"tools\[0\].type must be function"),
        ({"tools": [{"type": "function", "function": {}}]}, "name is missing"),
        ({"tools": 3}, "tools must be a list"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls must be true"),
        ({"chat_template_kwargs": {"marc": 1}}, "chat_template_kwargs.marc does not occur"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs must be a JSON object"),
        ({"continue_final_message": True}, "needs add_generation_prompt=false"),
    ],
)
def test_other_wrong_fields(make_server, body, words):
    body = {"messages": [{"role": "user", "content": "a"}]} | body
    with pytest.raises(HttpError, match=words):
        prompt(make_server, body)


def test_tools_need_a_template_that_knows_them(make_server, policy):
    tool = {"type": "function", "function": {"name": "add"}}
    body = {"messages": [{"role": "user", "content": "a"}], "tools": [tool]}
    with pytest.raises(HttpError, match="knows no tools"):
        prompt(make_server, body, tokenizer=policy.tokenizer)


def test_the_sentence_of_a_template_is_passed_on(make_server, chatty):
    from copy import copy

    tokenizer = copy(chatty.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    body = {"messages": [{"role": "system", "content": "a"}]}
    with pytest.raises(HttpError, match="no system here"):
        prompt(make_server, body, tokenizer=tokenizer)
