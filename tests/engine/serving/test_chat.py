import asyncio
import json
from dataclasses import replace

import pytest

from rl4p.data.call_reader import CallReader
from rl4p.data.messages import message_of
from rl4p.engine.serving.app import ServerState
from rl4p.engine.serving.body import HttpError, validate
from rl4p.engine.serving.chat import Conversation, ToolCall, ToolCallParser

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'
ADD = ToolCall("add", '{"a": 1, "b": "é"}')


def read(text, size):
    reader = CallReader(functions={"add": {}})
    parser, content, calls = ToolCallParser(reader), "", []
    for at in range(0, len(text), size):
        more, found = parser.feed(text[at : at + size])
        content, calls = content + more, calls + found
    more, found = parser.feed("", ended=True)
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
        ("The tag <tool_call> begins a call.", "The tag <tool_call> begins a call.", []),
        (
            f"One \n<tool_call>{{</tool_call> two {CALL}",
            "One \n<tool_call>{</tool_call> two",
            [ADD],
        ),
        (f"<think>{CALL}</think> No.", f"<think>{CALL}</think> No.", []),
        (f"<think>{CALL}</think>\n{CALL}", f"<think>{CALL}</think>", [ADD]),
        ('{"name": "Bob", "age": 5}', '{"name": "Bob", "age": 5}', []),
        ('{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
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


MESSAGES_CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
}

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
    assert message_of(message.model_dump(), message.role) == {"role": "system", "content": "ab"}


def test_what_stands_around_the_messages_is_in_the_prompt(make_server):
    async def main():
        server = make_server()
        server.add_prompting = lambda messages: [{"role": "system", "content": "s"}, *messages]
        conversation = validate(Conversation, {"messages": [{"role": "user", "content": "x"}]})
        return server.policy.tokenizer.decode(await conversation.encode(server))

    assert asyncio.run(main()) == "s:s|u:x|a:"


def test_the_arguments_of_former_calls_become_objects(make_server):
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [MESSAGES_CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    text, tools = prompt(make_server, {"messages": messages})
    assert text == 'u:x|a:add({"a": 1})|t:2|a:'
    assert not tools


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [MESSAGES_CALL]},
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
    assert message_of(ours.model_dump(), ours.role) == message_of(message, "row 1")


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


@pytest.mark.parametrize(
    ("skipped", "messages", "words"),
    [
        ("tool", [{"role": "tool", "content": "2"}], r"content of message 2 \(role tool\)"),
        ("system", [{"role": "system", "content": "x"}], r"content of message 2 \(role system\)"),
        ("", [{"role": "assistant", "tool_calls": [MESSAGES_CALL]}], "tool_calls of message 2"),
    ],
)
def test_what_a_template_leaves_out_is_refused(make_server, policy, skipped, messages, words):
    from copy import copy

    tokenizer = copy(policy.tokenizer)
    tokenizer.chat_template = (
        f"{{% for m in messages if m.role != '{skipped}' %}}{{{{ m.content }}}}{{% endfor %}}"
    )
    body = {"messages": [{"role": "user", "content": "a"}, *messages]}
    with pytest.raises(HttpError, match=f"leaves out {words}"):
        prompt(make_server, body, tokenizer=tokenizer)


def test_ids_of_calls_become_those_that_a_template_takes(make_server, chatty):
    from copy import copy

    tokenizer = copy(chatty.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id ~ c.function }}"
        "{% endfor %}{% if m.tool_call_id and m.tool_call_id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}{{ m.tool_call_id }}{{ m.content }}{% endfor %}"
    )
    call = MESSAGES_CALL | {"id": "call_0123456789abcdef01234567"}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "two"},
    ]
    text, _ = prompt(make_server, {"messages": messages}, tokenizer=tokenizer)
    assert text[1:10] == text[-12:-3]
    assert text.endswith("two")


def test_the_sentence_of_a_template_is_passed_on(make_server, chatty):
    from copy import copy

    tokenizer = copy(chatty.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    body = {"messages": [{"role": "system", "content": "a"}]}
    with pytest.raises(HttpError, match="no system here"):
        prompt(make_server, body, tokenizer=tokenizer)


URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CHAT_CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ROOM = {"max_completion_tokens": 90}


def test_an_answer_is_a_message(ask, scheduler, chatty):
    answer = ask(URL, {"messages": HI, "return_token_ids": True})
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["object"] == "chat.completion"
    assert chatty.tokenizer.decode(answer["prompt_token_ids"]) == "u:hi|a:"
    assert choice["token_ids"] == [*chatty.tokenizer.encode("hello"), chatty.end_ids[0]]
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    assert scheduler.asked[0].max_tokens == 128 - 7  # all positions that are left


def test_the_template_has_its_arguments(ask, chatty):
    def prompt(**body):
        answer = ask(URL, {"messages": HI, "return_token_ids": True} | body)
        return chatty.tokenizer.decode(answer["prompt_token_ids"])

    assert prompt(chat_template_kwargs={"mark": "!"}) == "u:hi|a:!"
    assert prompt(add_generation_prompt=False) == "u:hi|"
    assert prompt(tools=[TOOL]) == "[add]u:hi|a:"
    assert prompt(tools=[TOOL], tool_choice="none") == "u:hi|a:"


def test_a_stream_begins_with_the_role_and_has_the_whole_text(ask):
    body = {"messages": HI, "stream": True, "n": 2, "stream_options": {"include_usage": True}}
    *parts, last = ask(URL, body)
    assert parts[0]["object"] == "chat.completion.chunk"
    assert parts[0]["usage"] is None
    for index in range(2):
        own = [p["choices"][0] for p in parts if p["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(x["delta"].get("content", "") for x in own) == "hello"
        assert [x["finish_reason"] for x in own if x["finish_reason"]] == ["stop"]
    assert last["usage"]["completion_tokens"] == 12


def test_a_tool_call_is_part_of_the_message(ask, scheduler):
    scheduler.says = f"I add. {CHAT_CALL}"
    (choice,) = ask(URL, {"messages": HI, "tools": [TOOL]} | ROOM)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I add."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert call["id"]


def test_a_message_of_calls_alone_has_no_content(ask, scheduler):
    scheduler.says = CHAT_CALL
    (choice,) = ask(URL, {"messages": HI, "tools": [TOOL]} | ROOM)["choices"]
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("size", [1, 5, 200])
def test_a_tool_call_is_streamed_whole(ask, scheduler, size):
    scheduler.says, scheduler.size = f"I add. {CHAT_CALL}{CHAT_CALL}", size
    body = {"messages": HI, "tools": [TOOL], "stream": True, "max_completion_tokens": 120}
    deltas = [x["choices"][0] for x in ask(URL, body | {"max_completion_tokens": 107})]
    scheduler.says = CHAT_CALL
    deltas = [x["choices"][0] for x in ask(URL, body | ROOM)]
    calls = [call for x in deltas for call in x["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0]
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": 1}
    assert deltas[-1]["finish_reason"] == "tool_calls"
    assert not any("<tool" in x["delta"].get("content", "") for x in deltas)


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_without_its_end_tag_is_a_call(ask, scheduler, stream):
    scheduler.says = CHAT_CALL.removesuffix("</tool_call>")
    answer = ask(URL, {"messages": HI, "tools": [TOOL], "stream": stream} | ROOM)
    choice = (answer[-1] if stream else answer)["choices"][0]
    (call,) = choice["delta" if stream else "message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert call.get("index", 0) == 0
    assert choice["finish_reason"] == "tool_calls"


TYPED = {"n": {"type": "integer"}, "tags": {"type": "array"}, "ok": {"type": "boolean"}}
CODER = "<tool_call><function=add><parameter=n>5</parameter><parameter=tags>[1]</parameter>"
CODER += "<parameter=ok>True</parameter><parameter=s>7</parameter></function></tool_call>"


@pytest.mark.parametrize("stream", [True, False])
def test_arguments_have_the_types_of_the_request(ask, scheduler, monkeypatch, stream):
    monkeypatch.setattr(ServerState, "positions", 1000)
    scheduler.says = CODER
    parameters = {"type": "object", "properties": TYPED | {"s": {"type": ["string", "null"]}}}
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    answer = ask(URL, {"messages": HI, "tools": [tool], "stream": stream, "max_tokens": 400})
    choice = (answer[-1] if stream else answer)["choices"][0]
    (call,) = choice["delta" if stream else "message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments == {"n": 5, "tags": [1], "ok": True, "s": "7"}


@pytest.mark.parametrize(
    ("written", "change", "says", "calls"),
    [
        ("<think>", {}, CHAT_CALL, 0),
        ("<think>", {}, f"{CHAT_CALL}</think>{CHAT_CALL}", 1),
        ("<think></think>", {}, CHAT_CALL, 1),
        ("{{ '<think>' if mark else '' }}", {}, CHAT_CALL, 1),
        ("{{ '<think>' if mark else '' }}", {"chat_template_kwargs": {"mark": 1}}, CHAT_CALL, 0),
        ("<think>", {"add_generation_prompt": False}, CHAT_CALL, 1),
        ("<tool_call>", {}, '[TOOL_CALLS]add[ARGS]{"a": 1}', 0),
    ],
)
def test_the_template_says_what_is_read(make_server, chatty, written, change, says, calls):
    from copy import copy

    async def main():
        server = make_server()
        tokenizer = copy(chatty.tokenizer)
        end = "{% if add_generation_prompt %}" + written + "{% endif %}"
        tokenizer.chat_template = "{% if tools %}t{% endif %}{{ messages[0].content }}" + end
        server.policy = replace(server.policy, tokenizer=tokenizer)
        body = {"messages": [{"role": "user", "content": "say <think>"}], "tools": [TOOL]}
        return validate(Conversation, body | change).reader(server)

    assert len(asyncio.run(main()).calls(says)) == calls


def test_without_tools_a_call_is_text(ask, scheduler):
    scheduler.says = CHAT_CALL
    (choice,) = ask(URL, {"messages": HI} | ROOM)["choices"]
    assert choice["message"]["content"] == CHAT_CALL
    assert choice["finish_reason"] == "stop"


def test_a_call_that_was_cut_is_text(ask, scheduler):
    scheduler.says = CHAT_CALL
    (choice,) = ask(URL, {"messages": HI, "tools": [TOOL], "max_tokens": 20})["choices"]
    assert choice["message"]["content"] == CHAT_CALL[:20]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_have_bytes_and_alternatives(ask, stream):
    body = {"messages": HI, "logprobs": True, "top_logprobs": 1, "stream": stream}
    answer = ask(URL, body)
    answers = answer if stream else [answer]
    found = [x["choices"][0]["logprobs"] for x in answers]
    content = [token for logprobs in found if logprobs for token in logprobs["content"]]
    assert [token["token"] for token in content] == ["h", "e", "l", "l", "o", "<|end|>"]
    assert content[1]["bytes"] == [101]
    assert content[1]["logprob"] == -2.0
    assert [x["logprob"] for x in content[1]["top_logprobs"]] == [-0.5]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_message_has_a_limit(ask, name):
    answer = ask(URL, {"messages": HI, name: 2})
    assert answer["choices"][0]["message"]["content"] == "he"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages is missing"),
        ({"messages": []}, "messages must be a list that is not empty"),
        ({"messages": [{"role": "a", "content": "b"}]}, "messages[0].role must be one of"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens must be an integer from 1"),
        ({"messages": HI, "max_completion_tokens": 0}, "must be an integer from 1"),
        ({"messages": HI, "max_tokens": 500}, "longer than the 128 positions"),
        ({"messages": HI * 40}, "longer than the 128 positions"),
        ({"messages": HI, "top_logprobs": 2}, "top_logprobs needs logprobs=true"),
        ({"messages": HI, "logprobs": 2}, "logprobs must be true or false"),
        ({"messages": HI, "response_format": {"type": "json_object"}}, "must be text"),
        ({"messages": HI, "tool_choice": "required"}, "tool_choice must be auto or none"),
        ({"messages": HI, "functions": []}, "functions is not a field"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(ask, scheduler, body, message):
    assert message in ask(URL, body, status=400)["error"]["message"]
    assert not scheduler.asked


def test_harmless_fields_are_accepted(ask):
    ask(URL, {"messages": HI, "user": "a", "store": False, "response_format": {"type": "text"},
              "parallel_tool_calls": True, "presence_penalty": 0})  # fmt: skip
